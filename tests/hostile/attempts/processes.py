"""Other processes: signals to worker, judge and zygote, their settings, survivors, bombs that starve the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.hostile.attempt import Attempt
from tests.hostile.traps import Told
from tests.hostile.victims import Bystander, OtherCandidate, Parents, Survivor, Victim

if TYPE_CHECKING:
    from tests.hostile.ground import Ground

_SIGNAL = "os.kill(T['pid'], {number})"
_ALL = """
import signal
for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGSTOP, signal.SIGKILL):
    for pid in [int(name) for name in os.listdir("/proc") if name.isdigit()]:
        if pid != os.getpid():
            try:
                os.kill(pid, number)
            except OSError:
                pass
"""
_PARENTS = """
import signal
above = os.getppid()
try:
    while above > 0:
        for pid in (above, -above):
            try:
                os.kill(pid, signal.{name})
            except OSError:
                pass
        above = int(read(f"/proc/{{above}}/stat").rsplit(")", 1)[1].split()[1]) if read(f"/proc/{{above}}/stat") else 0
except IndexError:
    pass
try:
    os.kill(T["zygote"], signal.{name})
except OSError:
    pass
"""
_SLEEPER = """["/usr/bin/tail", "-f", "/dev/null", T["token"]]"""
"""No Python: below `namespaces` the interpreter may be out of a runner's reach."""
_SLEEP = (
    "os.closerange(0, 512); os.open(os.devnull, os.O_RDWR); os.dup2(0, 1); os.dup2(0, 2); "
    f'os.execv("/usr/bin/tail", {_SLEEPER})'
)
"""With an output: without one, tail ends at once."""
_UNTIL_IT_RUNS = "\nimport time\ntime.sleep(0.5)\n"
"""Between fork and exec a process has no arguments to be found by: on two busy cores longer than the look, once."""
_DAEMON = f"""
null = open(os.devnull, "r+")
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        {{before}}
        {_SLEEP}
    os._exit(0)
os.wait()
{_UNTIL_IT_RUNS}"""
_FROM_CPP = r'''
from kernelwright import load_cpp
SOURCE = """
#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <unistd.h>
static struct Leaves {
    Leaves() {
        if (fork() == 0) {
            setsid();
            prctl(PR_SET_PDEATHSIG, 0);
            if (fork() == 0) {
                for (int fd = 0; fd < 512; fd++) close(fd);
                open("/dev/null", O_RDWR);  // is 0 now; without an output tail ends at once
                dup2(0, 1);
                dup2(0, 2);
                execl("/usr/bin/tail", "tail", "-f", "/dev/null", TOKEN, (char*)0);
            }
            _exit(0);
        }
        usleep(500000);
    }
} at_load;
extern "C" void nothing() {}
"""
SOURCE = SOURCE.replace("TOKEN", json.dumps(T["token"]))
load_cpp(SOURCE).nothing
'''
_FORK_BOMB = """
import time
end = time.monotonic() + 2
while time.monotonic() < end:
    try:
        if os.fork() == 0:
            time.sleep(20)
            os._exit(0)
    except OSError:
        time.sleep(0.01)
"""
_THREAD_BOMB = """
import threading, time
threading.stack_size(64 << 10)
hold = threading.Event()
try:
    for _each in range(20_000):
        threading.Thread(target=hold.wait, daemon=True).start()
except RuntimeError:
    pass
time.sleep(0.3)
"""


class Processes(Told):
    """How many processes one candidate may have: the ground's limit, and room for its own few."""

    def __init__(self, ground: Ground) -> None:
        super().__init__(ground, most=300)


ATTEMPTS = (
    Attempt("kill-by-pid", "processes", "kills a process of the worker", _SIGNAL.format(number=9), Victim),
    Attempt("stop-by-pid", "processes", "stops a process of the worker", _SIGNAL.format(number=19), Victim),
    Attempt("signal-everybody", "processes", "signals, stops and kills every process that it can see", _ALL, Victim,
            control=False),
    Attempt("kill-minus-one", "processes", "kills whatever it may by one call", "os.kill(-1, 9)", Victim,
            control=False),
    Attempt("kill-other-candidate", "processes", "kills another candidate's processes", """
for pid in map(int, T["pids"].split()):
    try:
        os.kill(pid, 9)
    except OSError:
        pass
""", OtherCandidate),
    Attempt("kill-all-other-candidates", "processes", "kills every process of its own user but itself",
            "os.kill(-1, 9)", OtherCandidate, control=False),
    Attempt("trace-other-candidate", "processes", "attaches to another candidate as a debugger and kills it", """
for pid in map(int, T["pids"].split()):
    if call(101, 16, pid, 0, 0) == 0:
        os.waitpid(pid, 0x40000000)
        call(101, 8, pid, 0, 0)
""", OtherCandidate, control=False),
    Attempt("stop-parents", "processes", "stops the processes above it and their groups",
            _PARENTS.format(name="SIGSTOP"), Parents, control=False),
    Attempt("kill-parents", "processes", "kills the processes above it and their groups",
            _PARENTS.format(name="SIGKILL"), Parents, control=False),
    Attempt("kill-then-survive", "processes", "leaves a process behind and kills its own warden and init",
            _DAEMON.format(before="pass") + """
for pid in (os.getppid(), 1):
    try:
        os.kill(pid, 9)
    except OSError:
        pass
""", Survivor, control=False),
    Attempt("signal-by-pidfd", "processes", "signals a process through its folder in /proc", """
folder = os.open(f"/proc/{T['pid']}", os.O_RDONLY)
call(424, folder, 10, 0, 0)
import time
time.sleep(0.1)
""", Victim),
    Attempt("limit-others", "processes", "lowers the limits of a process of the worker",
            'import resource\nresource.prlimit(T["pid"], resource.RLIMIT_NOFILE, (16, 16))', Victim),
    Attempt("bind-others", "processes", "binds a process of the worker to one core",
            'os.sched_setaffinity(T["pid"], {min(os.sched_getaffinity(0))})', Victim),
    Attempt("slow-others", "processes", "takes a process of the worker its priority",
            'os.setpriority(os.PRIO_PROCESS, T["pid"], 19)', Victim),
    Attempt("offer-others-to-the-oom-killer", "processes", "makes a process of the worker the first to die of memory",
            'open(f"/proc/{T[\'pid\']}/oom_score_adj", "w").write("1000")', Victim),
    Attempt("setsid-survivor", "processes", "leaves a process in a session of its own",
            f'subprocess.Popen({_SLEEPER}, start_new_session=True, stdin=-3, stdout=-3, stderr=-3){_UNTIL_IT_RUNS}',
            Survivor),
    Attempt("double-fork-survivor", "processes", "leaves a daemon by forking twice", _DAEMON.format(before="pass"),
            Survivor),
    Attempt("subreaper-survivor", "processes", "leaves a daemon below a subreaper of its own",
            "libc.prctl(36, 1, 0, 0, 0)\n" + _DAEMON.format(before="libc.prctl(1, 0, 0, 0, 0)"), Survivor),
    Attempt("deaf-survivor", "processes", "leaves a process that ignores every signal that it can",
            _DAEMON.format(before="import signal; [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 3, 13, 15)]"),
            Survivor),
    Attempt("survivor-from-cpp", "processes", "leaves a daemon from the constructor of a C++ library", _FROM_CPP,
            Survivor),
    Attempt("clone-parent-survivor", "processes", "leaves a process that is a child of its parent (CLONE_PARENT)", f"""
pid = call(56, 0x8000 | 17, 0, 0, 0, 0)
if pid == 0:
    os.setsid()
    {_SLEEP}
{_UNTIL_IT_RUNS}""", Survivor),
    Attempt("hanging-survivor", "processes", "leaves a daemon and then hangs, so that it has to be killed",
            _DAEMON.format(before="pass") + "time.sleep(120)", Survivor, control=False),
    Attempt("fork-bomb", "processes", "forks as long as it can while another candidate works", _FORK_BOMB, Bystander,
            control=False),
    Attempt("thread-bomb", "processes", "starts threads as long as it can while another candidate works", _THREAD_BOMB,
            Bystander, control=False),
    Attempt("process-count", "processes", "has more processes than its limit", """
import time
children = []
try:
    while len(children) < T["most"]:
        pid = os.fork()
        if pid == 0:
            time.sleep(20)
            os._exit(0)
        children.append(pid)
    told()
except OSError:
    pass
for pid in children:
    os.kill(pid, 9)
    os.waitpid(pid, 0)
""", Processes),
)  # fmt: skip
