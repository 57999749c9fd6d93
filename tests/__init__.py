"""Tests of Millrace. They run on the sources, which coverage needs; with MILLRACE_PURE=0 on the
compiled modules, as boxes do."""

import os

from appliance.base.compiled import PURE_VARIABLE, is_compiled, use_compiled_modules

os.environ.setdefault(PURE_VARIABLE, "1")
use_compiled_modules()
if os.environ[PURE_VARIABLE] == "0" and not is_compiled():
    raise RuntimeError(f"{PURE_VARIABLE}=0, but the compiled modules do not fit the sources; run install/compile_modules.py")
