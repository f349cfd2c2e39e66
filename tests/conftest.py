"""What holds for all tests, whatever started them: no time limit for generated examples, and signals that arrive."""

import signal

import hypothesis

# Other work may keep the machine busy.
hypothesis.settings.register_profile("busy", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("busy")

# A shell's background job ignores SIGINT, and nohup SIGHUP; the programs under test would inherit that.
for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, usual)
