"""What holds for all tests: generated examples have no time limit, since other work may keep the machine busy."""

import hypothesis

hypothesis.settings.register_profile("busy", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("busy")
