"""One folder for each process. A process takes the compiled modules, if they fit, before it imports
any of them."""

from appliance.base.compiled import use_compiled_modules

use_compiled_modules()
