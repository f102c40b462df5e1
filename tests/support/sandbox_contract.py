"""What every backend has to do, whatever it is made of. Whoever imports it all, runs it (sandbox/test_contract.py)."""

from __future__ import annotations

import asyncio
import io
import os
import resource
import tarfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from airloop.errors import InfraError
from airloop.sandbox import processes
from airloop.sandbox.base import HOME, WORKSPACE, Image, Limits, Sandbox, SandboxLost

PLAIN = Image()
SMALL = Limits(memory_mb=256, processes=64, file_mb=8, disk_mb=32)
Check = Callable[..., Awaitable[None]]
os.environ["AIR_TEST_SECRET"] = "only the host knows"  # before any backend or engine starts


def contract(image: Image = PLAIN) -> Callable[[Check], Callable[..., None]]:
    """Makes a test of `async def check(sandbox, backend)`: the sandbox is started before it and closed after it."""

    def made(check: Check) -> Callable[..., None]:
        def test(backend) -> None:  # type: ignore[no-untyped-def]
            backend.play(check, image)

        test.__name__, test.__doc__ = check.__name__, check.__doc__
        return test

    return made


async def output(sandbox: Sandbox, command: str, timeout: float = 20) -> str:
    return (await sandbox.run(command, timeout)).output


async def written(sandbox: Sandbox, name: str) -> int:
    """The length of a file; -1 where there is none."""
    content = await sandbox.get(name)
    return -1 if content is None else len(content)


async def until(count: Callable[[], Awaitable[int]], enough: int, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while (found := await count()) < enough:
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.1)


# --- the shell ---------------------------------------------------------------------------------------------------


@contract(Image(env=(("COLOUR", "blue"),), setup="hello() { echo hello $1; }; export SET=up"))
async def test_state_lasts(sandbox, backend):
    first = await sandbox.run("pwd; echo $COLOUR $SET $HOME", 10)
    assert first.output == f"{WORKSPACE}\nblue up {HOME}\n" and first.exit_code == 0 and first.cwd == WORKSPACE
    moved = await sandbox.run(
        "mkdir -p deep/er && cd deep/er; x=7; export y=8; f() { echo f$x; }; alias z='echo alias'", 10
    )
    assert moved.cwd == f"{WORKSPACE}/deep/er"
    assert await output(sandbox, "pwd; echo $x $y; f; bash -c 'echo $y'; hello you; z") == (
        f"{WORKSPACE}/deep/er\n7 8\nf7\n8\nhello you\nalias\n"
    )


@contract()
async def test_exit_codes(sandbox, backend):
    for command, code in {
        "true": 0,
        "false": 1,
        "(exit 77)": 77,
        "no_such_program": 127,
        "if": 2,
        "kill -9 $BASHPID & wait $!": 137,
    }.items():
        assert (await sandbox.run(command, 10)).exit_code == code, command
    await sandbox.run("(exit 42)", 10)
    assert await output(sandbox, "echo $?; echo $?") == "42\n0\n"


@contract()
async def test_syntax_errors_leave_the_shell_usable(sandbox, backend):
    for command in ("echo 'never closed", "(", "for", "cat <<EOF", "echo $((1/0))", "}", "\\", "${", "$(", "`"):
        result = await sandbox.run(command, 5)
        assert not result.timed_out and not result.shell_restarted, command
        assert await output(sandbox, "echo fine") == "fine\n", command


@contract()
async def test_stdin_is_empty(sandbox, backend):
    assert await output(sandbox, 'cat; read x; echo "[$x]"; bash; python3 -') == "[]\n"


@contract()
async def test_heredocs_hold_anything(sandbox, backend):
    text = 'it\'s "quoted" $HOME `date` \\n \\ \t tab é 日本 \x01\x1b[31m !history\n\nEO\n  $(exit 3)\r\n%s %d\n'
    await sandbox.run(f"cat > anything <<'EOF'\n{text}EOF", 10)
    assert await sandbox.get("anything") == text.encode()


@contract()
async def test_a_nul_in_a_command_is_an_error_of_the_command(sandbox, backend):
    result = await sandbox.run("echo a\0b", 5)
    assert result.exit_code != 0 and await output(sandbox, "echo ok") == "ok\n"


@contract()
async def test_binary_output_is_decoded_with_replacement(sandbox, backend):
    raw = r"'\xff\xfe\x00\x1e\x1ea 0 /\x1e\x80'"
    result = await sandbox.run(f'python3 -c "import sys; sys.stdout.buffer.write(b{raw})"; echo; echo after', 10)
    assert result.exit_code == 0 and result.output.endswith("\nafter\n")
    assert result.output.startswith("��\0\x1e\x1ea 0 /\x1e�")


@contract()
async def test_stdout_and_stderr_keep_their_order(sandbox, backend):
    assert (
        await output(sandbox, "for i in 1 2 3; do echo out$i; echo err$i >&2; done")
        == "out1\nerr1\nout2\nerr2\nout3\nerr3\n"
    )


@contract(Image(limits=Limits(output_bytes=10_000)))
async def test_a_flood_is_cut_and_memory_stays_bounded(sandbox, backend):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = await sandbox.run("echo first; yes | head -c 50000000; echo last", 60)
    assert result.exit_code == 0 and not result.timed_out
    assert result.output.startswith("first\ny\n") and result.output.endswith("y\nlast\n")
    assert abs(result.cut_bytes - (50_000_011 - 10_000)) < 200  # what bash says to itself is left out
    assert len(result.output) < 11_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10
    assert await output(sandbox, "echo next") == "next\n"


@contract()
async def test_exit_exec_and_errexit_give_a_new_shell(sandbox, backend):
    await sandbox.run("mkdir here; cd here; x=1", 10)
    for command, code in (
        ("echo out; exit 3", 3),
        ("exec true", 0),
        ("set -e; echo out; false", 1),
        ("kill -9 $$", 137),
    ):
        result = await sandbox.run(command, 10)
        assert result.shell_restarted and result.exit_code == code and result.cwd == f"{WORKSPACE}/here", command
        assert ("out\n" in result.output) == ("out" in command)
        assert await output(sandbox, 'pwd; echo "[$x]"') == f"{WORKSPACE}/here\n[]\n"


@contract(Image(setup="tool() { echo tool; }"))
async def test_a_new_shell_has_the_setup(sandbox, backend):
    await sandbox.run("exit", 10)
    assert await output(sandbox, "tool") == "tool\n"


@contract()
async def test_a_new_shell_says_nothing_about_itself(sandbox, backend):
    for _ in range(5):
        assert await output(sandbox, "echo bye; exit") in ("bye\n", "bye\nexit\n")


@contract()
async def test_killing_everything_does_not_end_the_sandbox(sandbox, backend):
    result = await sandbox.run("sleep 100 & bash -c 'kill -9 -1'; echo not reached", 10)
    assert result.shell_restarted and "not reached" not in result.output
    assert await output(sandbox, "echo alive") == "alive\n" and sandbox.alive
    assert (await sandbox.run("sleep 30", 0.3)).timed_out  # and it can still be interrupted
    await sandbox.put("f", b"1")
    assert await sandbox.get("f") == b"1"


@contract()
async def test_a_closed_output_does_not_hang(sandbox, backend):
    await sandbox.run("exec >&- 2>&-", 5)
    assert (await sandbox.run("exit", 5)).shell_restarted
    assert await output(sandbox, "echo back") == "back\n"


# --- deadlines ---------------------------------------------------------------------------------------------------


@contract()
async def test_a_timeout_interrupts_and_the_shell_goes_on(sandbox, backend):
    await sandbox.run("x=5; cd /tmp", 10)
    hung = [
        "echo begun; sleep 60; echo no",
        "while :; do :; done",
        "python3 -c 'import time; time.sleep(60)'",
        "sleep 60 | cat",
    ]
    for command in hung:
        result = await sandbox.run(command, 0.5)
        assert result.timed_out and result.exit_code == 124 and not result.shell_restarted, command
        assert result.seconds < 30 and "no\n" not in result.output
        assert ("begun" in result.output) == ("begun" in command)
        assert await output(sandbox, "echo $x; pwd") == "5\n/tmp\n"


@contract()
async def test_what_ignores_the_interrupt_is_killed(sandbox, backend):
    await sandbox.run("x=5", 10)
    result = await sandbox.run(
        "python3 -c 'import signal, time; signal.signal(2, signal.SIG_IGN); time.sleep(60)'", 0.7
    )
    assert result.timed_out and not result.shell_restarted and result.seconds < 30
    assert await output(sandbox, "echo $x") == "5\n"


@pytest.mark.slow
@contract()
async def test_a_shell_that_ignores_the_interrupt_is_replaced(sandbox, backend):
    await sandbox.run("x=5; trap '' INT", 10)
    result = await sandbox.run("while :; do :; done", 0.3)
    assert result.timed_out and result.shell_restarted and result.exit_code == 124
    assert await output(sandbox, 'echo "[$x]"') == "[]\n"


@contract()
async def test_what_earlier_commands_left_running_survives_a_timeout(sandbox, backend):
    await sandbox.run("(while :; do date +%N >> ticks; sleep 0.05; done) & until [ -s ticks ]; do sleep 0.05; done", 20)
    assert (await sandbox.run("sleep 60", 0.3)).timed_out
    before = await sandbox.get("ticks")
    assert len(before) > 0
    await until(lambda: written(sandbox, "ticks"), len(before) + 1)


@contract()
async def test_background_output_is_not_another_commands(sandbox, backend):
    await sandbox.run("(sleep 0.2; echo late; touch said) &", 10)
    await until(lambda: written(sandbox, "said"), 0)
    assert await output(sandbox, "echo mine") == "mine\n"


@contract(Image(limits=SMALL))
async def test_close_leaves_no_process(sandbox, backend):
    name = f"{os.getpid()}{time.monotonic_ns()}"
    await sandbox.run(f"setsid nohup sleep 100.{name} >/dev/null 2>&1 & (sleep 100.{name} &)", 10)
    await until(lambda: asyncio.to_thread(lambda: int(len(running(name)) == 2)), 1)
    await sandbox.close()
    await sandbox.close()
    assert not sandbox.alive and running(name) == []
    with pytest.raises(InfraError):
        await sandbox.run("true", 5)


def running(text: str) -> list[int]:
    found = []
    for pid in processes.all_pids():
        try:
            if text in Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")[-2]:
                found.append(pid)
        except (OSError, IndexError):
            continue
    return found


# --- standing still ----------------------------------------------------------------------------------------------

COUNTING = (
    "((while :; do echo x >> counted; sleep 0.02; done) &); until [ -s counted ]; do sleep 0.05; done; wc -l < counted"
)


@contract()
async def test_a_frozen_sandbox_stands_still_and_goes_on(sandbox, backend):
    before = int(await output(sandbox, COUNTING))
    async with sandbox.frozen():
        with pytest.raises(InfraError):
            await sandbox.run("true", 5)
        await asyncio.sleep(4.0)
    still = int(await output(sandbox, "wc -l < counted"))
    assert 0 < before <= still < before + 120  # in four seconds it would have counted two hundred
    await until(lambda: written(sandbox, "counted"), 2 * still + 1)  # two bytes each time


@contract()
async def test_frozen_time_is_not_a_commands_own(sandbox, backend):
    running = asyncio.create_task(sandbox.run("sleep 0.5; echo done", 6.0))
    await asyncio.sleep(0.2)
    async with sandbox.frozen():
        await asyncio.sleep(7.0)
    result = await running
    assert result.output == "done\n" and not result.timed_out and result.seconds < 6.0


@contract()
async def test_a_frozen_sandbox_can_be_closed(sandbox, backend):
    await sandbox.run("sleep 100 &", 5)
    await sandbox.freeze()
    started = time.monotonic()
    await sandbox.close()
    assert time.monotonic() - started < 15
    await sandbox.thaw()  # as the end of `async with frozen()` does


# --- files -------------------------------------------------------------------------------------------------------


@contract(
    Image(
        files=(
            ("a.txt", b"a\n", 0o644),
            ("deep/run.sh", b"#!/bin/sh\necho ran\n", 0o755),
            (f"{HOME}/.cfg", b"c", 0o600),
        )
    )
)
async def test_the_images_files_are_there_and_the_agents_own(sandbox, backend):
    assert await output(sandbox, "cat a.txt; deep/run.sh; cat ~/.cfg; echo more >> a.txt; rm -r deep; cat a.txt") == (
        "a\nran\nca\nmore\n"
    )
    assert await output(sandbox, "stat -c '%u %g %a' a.txt ~/.cfg . | sort -u") in (
        "1000 1000 600\n1000 1000 644\n1000 1000 755\n",
    )


@contract()
async def test_put_and_get(sandbox, backend):
    content = bytes(range(256)) * 5000
    await sandbox.put("new/dir/file with 'quotes' é.bin", content, 0o755)
    assert await sandbox.get("new/dir/file with 'quotes' é.bin") == content
    assert await output(
        sandbox, "new/dir/* >/dev/null 2>&1; stat -c %a new/dir/*; touch new/dir/mine && echo writable"
    ) == ("755\nwritable\n")
    await sandbox.put("new/dir/file with 'quotes' é.bin", b"")
    assert await sandbox.get(f"{WORKSPACE}/new/dir/file with 'quotes' é.bin") == b""
    await sandbox.put("/tmp/elsewhere", b"x")
    assert await output(sandbox, "cat /tmp/elsewhere") == "x"


@contract()
async def test_get_gives_regular_files_only(sandbox, backend):
    await sandbox.run(
        "mkdir d; mkfifo pipe; ln -s d dl; ln -s nowhere broken; echo in > d/f; ln -s d/f fl; ln -s loop loop", 10
    )
    await sandbox.run("echo secret > closed; chmod 000 closed; mkdir locked; echo x > locked/f; chmod 000 locked", 10)
    for path in (
        "d",
        "pipe",
        "dl",
        "broken",
        "loop",
        "absent",
        "absent/f",
        "d/f/x",
        "/dev/zero",
        "/dev/null",
        "closed",
        "locked/f",
        "",
    ):
        assert await sandbox.get(path) is None, path
    assert await sandbox.get("fl") == b"in\n" == await sandbox.get("dl/f")


@contract()
async def test_links_lead_nowhere_outside(sandbox, backend):
    host = Path("/etc/machine-id") if Path("/etc/machine-id").is_file() else Path("/etc/hostname")
    await sandbox.run(f"ln -s {host} out; ln -s /proc/1/root{host} root; ln -s /proc/self/environ env", 10)
    for path in ("out", "root"):
        assert await sandbox.get(path) != host.read_bytes()
    assert b"only the host knows" not in (await sandbox.get("env") or b"")


@contract()
async def test_put_replaces_what_is_in_the_way(sandbox, backend):
    await sandbox.run(
        "echo keep > target; ln -s target link; mkdir -p dir/full; touch dir/full/f; mkfifo pipe; ln -s /etc/passwd p",
        10,
    )
    for path in ("link", "dir", "pipe", "p"):
        await sandbox.put(path, b"new")
        assert await sandbox.get(path) == b"new", path
    assert (
        await output(sandbox, "cat target; [ -L link ] || echo replaced; echo >> dir && echo ok")
        == "keep\nreplaced\nok\n"
    )


@contract(Image(limits=Limits(file_mb=400, disk_mb=400)))
async def test_a_file_over_the_limit_is_none(sandbox, backend):
    await sandbox.run("truncate -s 300M huge; head -c 1000 /dev/zero > small", 20)
    started = time.monotonic()
    assert await sandbox.get("huge") is None
    assert time.monotonic() - started < 20
    assert await sandbox.get("small", limit_bytes=999) is None and await sandbox.get(
        "small", limit_bytes=1000
    ) == bytes(1000)
    assert (
        await sandbox.get("/proc/version") and await sandbox.get("/proc/version", limit_bytes=10) is None
    )  # says it is empty


@contract()
async def test_list(sandbox, backend):
    await sandbox.run("touch a.py b.txt .hidden.py 'sp ace.py'; ln -s a.py l.py; mkdir z.py; mkfifo q.py", 10)
    await sandbox.run("mkdir -p d/e; touch d/c.py d/e/x.yaml", 10)
    assert await sandbox.list("*.py") == [".hidden.py", "a.py", "sp ace.py"]
    assert await sandbox.list("**/*.py") == [".hidden.py", "a.py", "d/c.py", "sp ace.py"]
    assert await sandbox.list("**/*.yaml") == ["d/e/x.yaml"]
    assert await sandbox.list("d/*") == ["d/c.py"] and await sandbox.list("nothing*") == []


@contract()
async def test_snapshot_and_restore(sandbox, backend):
    await sandbox.run(
        "mkdir -p d/e; echo one > d/e/f; chmod 750 d; ln -s d/e/f l; printf '#!/bin/sh\\nprintf hi' > x; chmod 755 x",
        10,
    )
    await sandbox.run("echo rc > ~/.rc; touch -d @1000000000 d/e/f; mkfifo p; touch 'odd\nname'", 10)
    saved = await sandbox.snapshot()
    await sandbox.run("echo two > d/e/f; rm x", 10)
    other = await backend.backend.start(saved)
    try:
        assert await output(
            other, "cat d/e/f l ~/.rc; ./x; stat -c %a d; stat -c %Y d/e/f; readlink l; [ -e p ]; echo $?"
        ) == ("one\none\nrc\nhi750\n1000000000\nd/e/f\n1\n")
        assert await other.list("odd*") == ["odd\nname"]
        assert await output(other, "echo three > d/e/f; cat d/e/f") == "three\n"
        assert await sandbox.get("d/e/f") == b"two\n"
    finally:
        await other.close()
    with tarfile.open(fileobj=io.BytesIO(saved.archive)) as tar:
        assert "home/agent/workspace/d/e/f" in tar.getnames()


@contract()
async def test_the_workspace_is_packed_within_a_limit(sandbox, backend):
    await sandbox.run("mkdir -p d; echo one > d/f; ln -s /etc/passwd l; ln d/f hard; mkfifo p; echo rc > ~/.rc", 10)
    with tarfile.open(fileobj=io.BytesIO(await sandbox.pack(1 << 20))) as tar:
        names = {member.name: member for member in tar}
        for name in ("d/f", "hard"):
            assert names[f"home/agent/workspace/{name}"].isreg()
            assert tar.extractfile(f"home/agent/workspace/{name}").read() == b"one\n"
    assert names["home/agent/workspace/l"].issym() and not any(".rc" in name or name.endswith("/p") for name in names)
    await sandbox.run("truncate -s 500M holes", 10)
    started = time.monotonic()
    with pytest.raises(SandboxLost):
        await sandbox.pack(1 << 20)
    assert time.monotonic() - started < 20


@contract(Image(door=3129))
async def test_a_door_leads_to_one_address_and_nowhere_else(sandbox, backend):
    async def answer(reader, writer):
        writer.write(b"heard " + await reader.readexactly(2))
        writer.close()

    other = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server, other:
        at, apart = (one.sockets[0].getsockname()[1] for one in (server, other))
        say = "exec 3<>/dev/tcp/127.0.0.1/{} && printf hi >&3 && timeout 5 head -c 8 <&3"
        assert "heard" not in (await sandbox.run(say.format(3129), 10)).output  # it does not lead anywhere yet
        sandbox.lead("127.0.0.1", at)
        for _ in range(3):
            assert (await sandbox.run(say.format(3129), 10)).output == "heard hi"
        for port in (at, apart):
            assert "refused" in (await sandbox.run(say.format(port), 10)).output
        assert (await sandbox.run("exec 3<>/dev/tcp/192.0.2.1/80", 10)).exit_code != 0
        crowd = "for i in {1..300}; do exec {f}<>/dev/tcp/127.0.0.1/3129; done; echo held"
        assert "held" in await output(sandbox, crowd) and len(sandbox.passage.everyone) <= 64
        assert (await output(sandbox, "sleep 99 & kill -KILL -1; echo on")).endswith("on\n")


# --- what it may use ---------------------------------------------------------------------------------------------


@contract(Image(limits=SMALL))
async def test_memory_is_limited(sandbox, backend):
    result = await sandbox.run("python3 -c 'x = bytearray(600 << 20); print(len(x))'; echo code $?", 30)
    assert "629145600" not in result.output and "code 0" not in result.output
    assert await output(sandbox, "echo alive") == "alive\n"


MANY = """
import os, time
made = 0
try:
    while made < 500:
        if os.fork() == 0:
            time.sleep(60)
        made += 1
except OSError:
    pass
open("n", "w").write(str(made))
"""


@contract(Image(limits=SMALL))
async def test_processes_are_limited(sandbox, backend):
    if "weaker" in backend.backend.protections()["processes"]:
        pytest.skip(backend.backend.protections()["processes"])
    await sandbox.put("many.py", MANY.encode())
    await sandbox.run("python3 many.py", 20)
    assert 10 < int(await sandbox.get("n")) <= 64
    await sandbox.put("late", b"still possible")
    assert await sandbox.get("late") == b"still possible"


@pytest.mark.slow
@contract(Image(limits=SMALL))
async def test_a_sandbox_full_of_processes_still_obeys(sandbox, backend):
    if "weaker" in backend.backend.protections()["processes"]:
        pytest.skip(backend.backend.protections()["processes"])
    full = await sandbox.run("for i in {1..80}; do sleep 60 & done >/dev/null 2>&1; sleep 60", 1)
    assert full.timed_out and not full.shell_restarted
    result = await sandbox.run("echo obeys", 30)
    assert result.output == "obeys\n" and not result.timed_out and not result.shell_restarted


@contract(Image(limits=SMALL))
async def test_one_file_is_limited(sandbox, backend):
    await sandbox.run("head -c 20000000 /dev/zero > big", 20)
    assert len(await sandbox.get("big")) <= 8 << 20


@contract(Image(limits=SMALL))
async def test_the_disk_is_limited(sandbox, backend):
    for place in (HOME, "/tmp"):
        result = await sandbox.run(
            f"for i in 1 2 3 4 5 6 7 8; do head -c 8000000 /dev/zero > {place}/f$i; done; rm {place}/f*", 20
        )
        assert "No space left" in result.output
    assert await output(sandbox, "echo fine > f; cat f") == "fine\n"


@contract(Image(limits=SMALL))
async def test_a_full_disk_is_the_agents_own_trouble(sandbox, backend):
    await sandbox.run("for i in 1 2 3 4 5 6 7 8; do head -c 8000000 /dev/zero > f$i; done", 20)
    with pytest.raises(SandboxLost):
        await sandbox.put("g", bytes(1 << 20))
    assert await sandbox.get("f1") == bytes(8_000_000)


@contract(Image(limits=Limits(open_files=64, cpu_s=1)))
async def test_open_files_and_cpu_time_are_limited(sandbox, backend):
    assert await output(sandbox, "ulimit -n; ulimit -c") == "64\n0\n"
    result = await sandbox.run("python3 -c 'while True: pass'; echo code $?", 20)
    assert not result.timed_out and "code 0" not in result.output


# --- what it may see ---------------------------------------------------------------------------------------------


REACH = """
import socket
for address in ("127.0.0.1", 22), ("192.0.2.1", 80), ("203.0.113.1", 53):
    try:
        socket.create_connection(address, 2)
        print("reached", address)
    except OSError:
        pass
try:
    print("resolved", socket.getaddrinfo("example.org", 80))
except OSError:
    pass
print(sorted(name for _, name in socket.if_nameindex()))
"""


@contract()
async def test_there_is_no_network(sandbox, backend):
    await sandbox.put("reach.py", REACH.encode())
    assert await output(sandbox, "python3 reach.py", 30) == "['lo']\n"


@contract()
async def test_the_system_is_read_only(sandbox, backend):
    for place in ("/", "/usr", "/usr/bin", "/etc", "/home", "/proc/sys/kernel", "/sys", "/dev", "/opt", "/var"):
        assert "made" not in await output(sandbox, f"touch {place}/made_it 2>/dev/null && echo made", 10), place
    refused = "mknod b b 8 0; mount -t tmpfs x /tmp; unshare -m true; echo 1 > /proc/sys/kernel/panic; chown 0 ."
    for command in refused.split("; "):
        assert (await sandbox.run(f"{command} 2>/dev/null", 10)).exit_code != 0, command
    assert await output(sandbox, "id -u; grep -h 'CapEff\\|NoNewPrivs' /proc/self/status") == (
        "1000\nCapEff:\t0000000000000000\nNoNewPrivs:\t1\n"
    )


@contract()
async def test_no_secret_of_the_host_is_seen(sandbox, backend):
    seen = "env; cat /proc/*/environ 2>/dev/null; cat /proc/*/cmdline 2>/dev/null"
    assert "only the host knows" not in await output(sandbox, seen)
    assert "PATH=" in await output(sandbox, "env")


@contract(Image(files=(("mine", b"1", 0o644),)))
async def test_sandboxes_do_not_see_each_other(sandbox, backend):
    other = await backend.start(Image())
    try:
        await other.run("echo theirs > /tmp/theirs; echo theirs > theirs; sleep 98.76 & exec 2>/dev/null", 10)
        assert (
            await output(
                sandbox,
                "ls; ls /tmp/theirs 2>/dev/null; cat /proc/*/cmdline | tr '\\0' ' ' | grep -c '98\\.76' ; echo end",
            )
            == "mine\n0\nend\n"
        )
        assert await output(other, "ls") == "theirs\n"
    finally:
        await other.close()
    assert await output(sandbox, "echo alive") == "alive\n"


@contract()
async def test_binds_are_read_only(sandbox, backend):
    own = Path(__file__)
    image = Image(
        binds=((str(own.parent), f"{WORKSPACE}/data/tests"), (__file__, f"{HOME}/one.py")),
        files=(("data/own", b"1", 0o644),),
    )
    bound = await backend.start(image)
    try:
        assert await bound.get(f"data/tests/{own.name}") == own.read_bytes() == await bound.get(f"{HOME}/one.py")
        for command in (f"echo >> data/tests/{own.name}", "touch data/tests/new", "rm ~/one.py", "chmod 777 ~/one.py"):
            assert (await bound.run(f"{command} 2>/dev/null", 10)).exit_code != 0, command
        assert await output(bound, "touch new data/new && mkdir ~/d && echo ok") == "ok\n"
        saved = await bound.snapshot()
        assert b"AIR_TEST_SECRET" not in saved.archive  # this very file
        again = await backend.backend.start(saved)
        assert await again.list("data/*") == ["data/new", "data/own"]
        await again.close()
    finally:
        await bound.close()


@contract()
async def test_many_sandboxes_at_once(sandbox, backend):
    async def one(number: int) -> str:
        own = await backend.start(Image(env=(("N", str(number)),)))
        try:
            await own.run("cd /tmp; sleep 0.1", 30)
            return await output(own, "echo $N; pwd", 30)
        finally:
            await own.close()

    assert await asyncio.gather(*(one(n) for n in range(6))) == [f"{n}\n/tmp\n" for n in range(6)]
