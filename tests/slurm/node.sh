#!/bin/bash
# node.sh start DIR | stop DIR: a SLURM of one node on the loopback address, for tests. Needs root, no systemd.
# The node is this host with two pretend GPUs. Environment: PORT (two free ports from here), PROCTRACK (linuxproc or
# cgroup). Everything lies in DIR but the link /etc/slurm/slurm.conf: job steps drop SLURM_CONF.
set -eu
action=$1
mkdir -p "$2"
dir=$(readlink -f "$2")
conf=$dir/slurm.conf
link=/etc/slurm/slurm.conf
host=$(hostname -s)
port=${PORT:-16817}
export SLURM_CONF=$conf

configure() {
    mkdir -p "$dir/state" "$dir/spool" "$dir/log" "$(dirname $link)"
    (umask 077 && head -c 128 /dev/urandom > "$dir/munge.key")
    for gpu in 0 1; do
        [ -e "$dir/gpu$gpu" ] || mknod "$dir/gpu$gpu" c 1 3   # the null device
    done
    echo "NodeName=$host Name=gpu File=$dir/gpu[0-1]" > "$dir/gres.conf"
    echo "CgroupPlugin=cgroup/v1" > "$dir/cgroup.conf"
    cat > "$conf" << END
ClusterName=onenode
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmdPort=$((port + 1))
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmUser=root
AuthInfo=socket=$dir/munge.sock
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.pid
SlurmctldLogFile=$dir/log/slurmctld.log
SlurmdLogFile=$dir/log/slurmd.log
ProctrackType=proctrack/${PROCTRACK:-linuxproc}
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
KillWait=5
MinJobAge=300
ReturnToService=2
EnforcePartLimits=ALL
SchedulerParameters=batch_sched_delay=0,sched_min_interval=1
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc) RealMemory=$(($(awk '/^MemTotal/ {print $2}' /proc/meminfo) / 1024)) Gres=gpu:2
PartitionName=main Nodes=$host Default=YES DefaultTime=10 MaxTime=UNLIMITED
END
}

start() {
    if [ -e $link ] && ! grep -qx ClusterName=onenode $link; then
        echo "$link is that of a real cluster: not touched" >&2
        exit 1
    fi
    configure
    ln -sfn "$conf" $link
    munged --force --key-file="$dir/munge.key" --socket="$dir/munge.sock" --pid-file="$dir/munged.pid" \
        --log-file="$dir/log/munged.log" --seed-file="$dir/munge.seed"
    slurmctld -c -f "$conf"
    slurmd -c -f "$conf" -N "$host"
    for _ in $(seq 200); do
        [ "$(sinfo -h -p main -o %t 2> /dev/null)" = idle ] && exit 0
        sleep 0.1
    done
    tail -n 20 "$dir"/log/*.log >&2
    exit 1
}

# Ends what start began: jobs first, then the daemons, each by the pid that it wrote down.
stop() {
    scancel --me 2> /dev/null || true
    for _ in $(seq 100); do
        [ -z "$(squeue -h 2> /dev/null)" ] && break
        sleep 0.1
    done
    for daemon in slurmd slurmctld munged; do
        [ -s "$dir/$daemon.pid" ] || continue
        pid=$(cat "$dir/$daemon.pid")
        [ "$(cat "/proc/$pid/comm" 2> /dev/null)" = $daemon ] || continue
        kill "$pid" 2> /dev/null || continue
        for _ in $(seq 100); do
            kill -0 "$pid" 2> /dev/null || break
            sleep 0.1
        done
    done
    [ "$(readlink $link)" = "$conf" ] && rm $link
    rmdir "/sys/fs/cgroup/freezer/slurm_$host" 2> /dev/null || true
}

$action
