"""A vLLM plugin that lets OffloadingConnector run on the CPU: scheduler, hashing and disk tier are vLLM's own.

vLLM copies between KV cache and host memory with CUDA only. Here both lie in host memory, so a copy is a copy; it is
done at once, where a GPU's runs beside the computing.
"""


def register() -> None:
    """Called by vLLM in each of its processes."""
    from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
    from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
    from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

    class Worker(OffloadingWorker):
        """Copies whole blocks between the KV cache and the region that the disk tier reads and writes."""

        def __init__(self, kv_caches, region):
            self.region = region
            self.pairs = [
                (one.tensor, region.create_next_worker_view(one.page_size_bytes)) for one in kv_caches.tensors
            ]
            self.done = []

        def submit_store(self, job_id, src_spec, dst_spec):
            return self.copy(job_id, [(host, cache) for cache, host in self.pairs], dst_spec, src_spec)

        def submit_load(self, job_id, src_spec, dst_spec):
            return self.copy(job_id, self.pairs, dst_spec, src_spec)

        def copy(self, job_id, pairs, into, source):
            for target, origin in pairs:
                target[into.block_ids] = origin[source.block_ids]
            size = sum(origin.shape[1] for _, origin in pairs) * len(source.block_ids)
            self.done.append(TransferResult(job_id, success=True, transfer_size=size, transfer_time=1e-6))
            return True

        def get_finished(self):
            done, self.done = self.done, []
            return done

        def wait(self, job_ids):
            pass

        def shutdown(self):
            self.pairs = []
            self.region.cleanup()

    def get_worker(self, kv_caches):
        assert self.blocks_per_chunk == 1, "one block of the KV cache is one of the host's"
        if not self._worker:
            region = SharedOffloadRegion(
                engine_id=self._engine_id,
                num_chunks=self.num_chunks,
                rank=0,
                kv_bytes_per_chunk=self.kv_bytes_per_chunk,
                cpu_page_size=self.cpu_page_size_per_worker,
            )
            self._worker = Worker(kv_caches, region)
        return self._worker

    TieringOffloadingSpec.get_worker = get_worker
