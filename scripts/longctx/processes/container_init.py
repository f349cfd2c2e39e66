"""The first program of a container: runs the command that it gets, and ends it when standard input closes.

Mounted into the container and run there, by whatever Python the image has: standard library only, none of our modules.
"""

import os
import signal
import subprocess
import sys
import threading

GRACE_S = 20


def main() -> None:
    server = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)

    def end() -> None:
        os.read(0, 1)
        server.terminate()
        threading.Timer(GRACE_S, server.kill).start()

    signal.signal(signal.SIGTERM, lambda *_: server.terminate())
    threading.Thread(target=end, daemon=True).start()
    code = server.wait()
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
