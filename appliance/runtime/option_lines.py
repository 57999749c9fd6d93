"""Prints a settings file as lines for shell scripts: `python -m appliance.runtime.option_lines
FILE`, before anything is installed.

A line is NAME, a tab and a value: the options of `[box]` with their defaults; `data` per configured
directory; `disk` per directory that the box has after its disk orders; `console_socket` of the box
as a service; `zookeeper_member` per member of the ensemble, `zookeeper_tls` twice (key store and
authorities) if they are asked with TLS; `broker_id` and `rack` if set;
`problem` per error of the file. It needs the standard library alone, so that install.sh can use the
system's Python. Of the machine it reads only names of directories and the kept disk orders. Weak: a
value with a line feed would be two lines; install.sh refuses such directories.
"""

from __future__ import annotations

import os
import sys

from appliance.base.layout import SYSTEM_ROOT, BoxLayout, box_name
from appliance.base.zookeeper_access import zookeeper_tls
from appliance.runtime.directories import shape_problems
from appliance.runtime.disk_orders import with_kept_disks
from appliance.runtime.run_options import RunOptions, resolve_options


def option_lines(path: str, cores: int) -> list[str]:
    """Return all that `millrace run --config PATH` takes from the file, and all its problems with
    it."""
    options, problems = resolve_options(RunOptions(config=path), cores)
    problems += shape_problems(options.data, options.state)
    lines = [f"data\t{directory}" for directory in options.data]
    lines += [f"disk\t{directory}" for directory in with_kept_disks(options)[0].data]
    lines += [f"{name}\t{getattr(options, name)}" for name in ("state", "listen", "advertise", "kafka_port", "syslog_port", "http_port", "ingest_port")]
    lines.append(f"console_socket\t{BoxLayout(f'{SYSTEM_ROOT}/{box_name(options.state)}').console_socket}")
    lines.append(f"zookeeper\t{options.zookeeper or 'embedded'}")
    lines += [f"zookeeper_member\t{member.text}" for member in options.zookeeper_members]
    tls = zookeeper_tls(options.settings)
    lines += [f"zookeeper_tls\t{file}" for file in tls or ()]
    lines += [f"broker_id\t{options.broker_id}"] if options.broker_id is not None else []
    rack = options.settings["broker.rack"]
    lines += [f"rack\t{rack}"] if rack else []
    return lines + [f"problem\t{problem}" for problem in problems]


if __name__ == "__main__":
    print("\n".join(option_lines(sys.argv[1], os.cpu_count() or 1)))
