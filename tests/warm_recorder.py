"""Records without the seconds that a Python takes to import torch and transformers.

A process that has imported them forks for each record. The recorder runs as it always does, with
its own environment, folder and output; it is as if the interpreter started at once.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from threading import Lock
from typing import Any

SERVER = """
import json, os, sys, traceback
import numpy, safetensors.torch, tokenizers, torch, transformers
from transformers import AutoModelForCausalLM, LlamaForCausalLM

for line in sys.stdin:
    asked = json.loads(line)
    process = os.fork()
    if process == 0:
        code = 1
        try:
            os.setsid()
            os.chdir(asked["folder"])
            os.environ.clear()
            os.environ.update(asked["environment"])
            printed = os.open("output.txt", os.O_WRONLY | os.O_CREAT)
            for stream in (1, 2):
                os.dup2(printed, stream)
            sys.argv = ["-c", *asked["command"][3:]]
            exec(asked["command"][2], {"__name__": "__main__"})
            code = 0
        except SystemExit as end:
            code = end.code or 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
"""


class WarmRecorder:
    """Stands in for :func:`harness.gate.recording._run`."""

    def __init__(self) -> None:
        offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **offline},
            start_new_session=True,
        )
        self.count = 0
        self._one_at_a_time = Lock()

    def __call__(
        self, command: list[str], folder: Path, environment: dict[str, str], timeout: float
    ) -> int | None:
        """Run a recorder; ``timeout`` is not kept."""
        assert command[0] == sys.executable, "another environment cannot be forked"
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        asked: dict[str, Any] = {"command": command, "folder": str(folder)}
        asked["environment"] = environment
        with self._one_at_a_time:
            self._process.stdin.write(json.dumps(asked) + "\n")
            self._process.stdin.flush()
            self.count += 1
            return int(self._process.stdout.readline())

    def close(self) -> None:
        """End the process and those that it made."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()
