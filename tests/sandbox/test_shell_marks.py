"""The marks of finished commands, without a sandbox: pipes stand for it."""

from __future__ import annotations

import asyncio
import os
import time

from airloop.sandbox.shell import Shell

MARK = "0123456789abcdef"


async def nothing(how: str) -> None:
    return


def test_a_mark_that_came_while_this_process_stood_still_came_in_time() -> None:
    """With it the command's time ends, too: both are seen at once, and the command had ended."""
    out, into = os.pipe()

    async def work() -> tuple[bool, str]:
        shell = Shell(lambda data: None, nothing, MARK, 1000)
        loop = asyncio.get_running_loop()
        loop.add_reader(out, lambda: shell.received(os.read(out, 1000)))

        def stand_still() -> None:
            os.write(into, f"said\n\x1e{MARK} 1 0 /tmp\x1e".encode())
            time.sleep(0.4)

        loop.call_later(0.05, stand_still)
        result = await asyncio.wait_for(shell.run("true", 0.2), 60)
        loop.remove_reader(out)
        return result.timed_out, result.output

    try:
        assert asyncio.run(work()) == (False, "said\n")
    finally:
        os.close(out)
        os.close(into)


def test_marks_that_come_for_ever_do_not_keep_a_command_from_its_end() -> None:
    async def work() -> tuple[str, str] | None:
        shell = Shell(lambda data: None, nothing, MARK, 1000)

        async def forge() -> None:
            while True:
                shell.received(f"\x1e{MARK} 7 0 /tmp\x1e".encode() * 200)
                await asyncio.sleep(0)

        forging = asyncio.create_task(forge())
        try:
            return await asyncio.wait_for(shell._wait(1, shell._now() + 0.2), 60)
        finally:
            forging.cancel()

    assert asyncio.run(work()) is None
