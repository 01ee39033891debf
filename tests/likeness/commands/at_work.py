"""at_work.py WORD...: runs `likeness WORD...`, which prints "at work" and waits for a signal where
it first touches a file or folder whose name has "touched" in it, or listens at a port.
"""

import sys
import threading
import time

EVENTS = {"open", "os.listdir", "os.mkdir", "os.scandir", "sqlite3.connect", "subprocess.Popen"}
is_waiting = False


def wait(event: str, arguments: tuple[object, ...]) -> None:
    global is_waiting
    is_touched = event in EVENTS and "touched" in f"{arguments[:2]}"
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and not is_waiting and (is_touched or event == "socket.bind"):
        is_waiting = True
        print("at work", flush=True)
        while True:
            time.sleep(60)


if __name__ == "__main__":
    from likeness.cli import main

    sys.addaudithook(wait)
    main()
