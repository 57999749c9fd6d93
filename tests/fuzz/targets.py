"""What is fuzzed: one function a target, bytes in, nothing out; whatever it raises is a finding.

Every parser of strangers' bytes has a target, and so have the files that ingest reads back (`test_fuzz` finds modules that no seed
reaches). Weak spot: inputs are small, so what costs too much only when it is large is for unit tests and for `system/test_hostile_senders.py`.
"""

from __future__ import annotations

from tests.fuzz.acl_targets import ACL_TARGETS
from tests.fuzz.agents_targets import AGENTS_TARGETS
from tests.fuzz.batch_targets import BATCH_TARGETS
from tests.fuzz.gelf_targets import GELF_TARGETS
from tests.fuzz.http_targets import HTTP_TARGETS
from tests.fuzz.kafka_targets import KAFKA_TARGETS
from tests.fuzz.push_targets import PUSH_TARGETS
from tests.fuzz.sasl_targets import SASL_TARGETS
from tests.fuzz.security_targets import SECURITY_TARGETS
from tests.fuzz.state_targets import STATE_TARGETS
from tests.fuzz.syslog_targets import SYSLOG_TARGETS
from tests.fuzz.target import Targets

INGEST_TARGETS: Targets = SYSLOG_TARGETS | BATCH_TARGETS | AGENTS_TARGETS | GELF_TARGETS | HTTP_TARGETS | PUSH_TARGETS | STATE_TARGETS
TARGETS: Targets = KAFKA_TARGETS | INGEST_TARGETS | SECURITY_TARGETS | ACL_TARGETS | SASL_TARGETS
