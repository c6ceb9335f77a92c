"""A coding agent drives the lane over MCP, with the client of the `mcp` package."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import chatting
import lane_fakes as fakes
import pytest

from fasttrack import story, storage
from fasttrack.agents import mcp_server
from fasttrack.agents.external import External
from fasttrack.agents.tools import TOOLS

CLI = Path(__file__).parent / "toy_cli.py"


@contextlib.contextmanager
def started(command, **options):
    """A process that does not outlive a failed test."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def text_of(result):
    return "".join(part.text for part in result.content)


async def one_round(client):
    """Reads, writes a wrong kernel and a right one, and finishes; the texts that came back."""
    listed = await client.list_tools()
    assert {tool.name for tool in listed.tools} == set(TOOLS)
    told = {}

    async def call(name, **arguments):
        result = await client.call_tool(name, arguments)
        told.setdefault(name, []).append((text_of(result), bool(result.is_error)))
        return text_of(result)

    await call("read_contract")
    await call("list_files")
    await call("read_file", path="kernels/copy.py")
    await call("read_file", path="../../../etc/passwd")
    await call("evaluate")
    for body in (fakes.KERNEL + "# WRONG\n", fakes.KERNEL + "# FASTER\n"):
        await call("write_candidate", files=[{"path": "kernels/copy.py", "text": body}], config={"num_warps": 2})
        await call("evaluate", note="an idea")
    digest = (await call("history")).splitlines()[-1].split()[1]
    await call("time", candidate=digest)
    await call("profile", candidate=digest)
    await call("read_candidate", candidate=digest)
    await call("finish", reason="good enough")
    return told


def check(told):
    assert "Op copy of Toy" in told["read_contract"][0][0]
    assert told["read_file"][0] == ("```\n" + fakes.KERNEL.rstrip() + "\n```", False)
    assert told["read_file"][1][1] and "can be read" in told["read_file"][1][0]
    assert told["evaluate"][0] == ("not done: nothing has been written yet; write_candidate first", True)
    assert told["evaluate"][1][0].startswith("rejected: numerics.precision: off by 3")
    assert told["evaluate"][2][0].startswith("accepted")
    # By hand from fakes.microseconds: BLOCK 32 with 2 warps at one row is 100 + 16 + 2 - 30.
    assert "h200 tp8-r1: 88 us modelled, not measured" in told["time"][0][0]
    assert told["profile"][0][0].startswith("no plan was recorded")
    assert "branch: fasttrack/toy/copy/" in told["finish"][0][0]


def environment(tmp_path):
    return {
        **os.environ,
        "FASTTRACK_HOME": str(tmp_path / "state"),
        "HOME": str(tmp_path / "home"),
        "GIT_CONFIG_NOSYSTEM": "1",
    }


def runs(checkout):
    return sorted(path.parent for path in storage.runs_directory(checkout).glob("*/run.json"))


def test_over_standard_input_and_output(checkout, tmp_path):
    from mcp import Client, StdioServerParameters, stdio_client

    server = StdioServerParameters(
        command=sys.executable, args=[str(CLI), "mcp", "toy", "--op", "copy", "--hardware", "h200"],
        env=environment(tmp_path), cwd=checkout,
    )  # fmt: skip

    async def go():
        async with Client(stdio_client(server)) as client:
            return await one_round(client)

    check(asyncio.run(asyncio.wait_for(go(), 60)))
    told = story.read(runs(checkout)[-1])
    assert [a.status for a in told.attempts] == ["rejected", "accepted"] and told.exit_code == 0
    assert told.request.agent == "external" and told.attempts[1].note == "an idea"


def test_over_http_with_a_token(checkout, tmp_path):
    import httpx2
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    command = [
        sys.executable,
        str(CLI),
        "propose",
        "toy",
        "--op",
        "copy",
        "--agent",
        "external",
        "--hardware",
        "h200",
        "--json",
    ]
    with started(command, cwd=checkout, env=environment(tmp_path)) as process:
        said = process.stderr.readline()
        path = Path(said.split("the token is in ")[1].strip())
        assert path.stat().st_mode & 0o077 == 0
        known = json.loads(path.read_text())
        assert known["url"].startswith("http://127.0.0.1:")

        for header in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": known["token"]}):
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(urllib.request.Request(known["url"], data=b"{}", headers=header))
            assert refused.value.code == 401
        # A web page of another origin has the token of nobody, and is refused even with it.
        foreign = {"Authorization": f"Bearer {known['token']}", "Origin": "https://evil.example", "Content-Type": "application/json",
                   "Accept": "application/json, text/event-stream"}  # fmt: skip
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(urllib.request.Request(known["url"], data=b"{}", headers=foreign))
        assert refused.value.code in (403, 421)

        async def go():
            headers = {"Authorization": f"Bearer {known['token']}"}
            async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
                async with Client(streamable_http_client(known["url"], http_client=http)) as client:
                    return await one_round(client)

        check(asyncio.run(asyncio.wait_for(go(), 60)))
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    outcome = json.loads(out)
    assert outcome["exit_code"] == 0 and known["token"] not in out + err
    assert not any(
        known["token"] in p.read_text("utf-8", "replace") for p in Path(outcome["directory"]).rglob("*") if p.is_file()
    )


def test_an_agent_that_leaves_ends_the_run_with_what_there_is(checkout, tmp_path):
    from mcp import Client, StdioServerParameters, stdio_client

    server = StdioServerParameters(
        command=sys.executable, args=[str(CLI), "mcp", "toy", "--op", "copy", "--hardware", "h200"],
        env=environment(tmp_path), cwd=checkout,
    )  # fmt: skip

    async def go():
        async with Client(stdio_client(server)) as client:
            await client.call_tool(
                "write_candidate", {"files": [{"path": "copy.py", "text": fakes.KERNEL + "# FASTER\n"}]}
            )
            return text_of(await client.call_tool("evaluate", {}))

    assert asyncio.run(asyncio.wait_for(go(), 60)).startswith("accepted")
    # The client may kill the server once it has left; then the run can be resumed.
    told = story.read(runs(checkout)[-1])
    assert told.state in ("over", "stopped", "running") and [a.status for a in told.attempts] == ["accepted"]


def test_the_last_verdict_comes_with_the_end_of_the_run(checkout):
    import threading

    from fasttrack import lane

    external, told = External(), []
    chosen = lane.Options(
        model="toy", op="copy", checkout=checkout, agent="external", external=external, rounds=1, hardware=("h200",)
    )

    def agent():
        external.call("write_candidate", {"files": [{"path": "copy.py", "text": fakes.KERNEL + "# FASTER\n"}]})
        told.append(external.call("evaluate", {}))
        told.append(external.call("history", {}))

    thread = threading.Thread(target=agent)
    thread.start()
    outcome = lane.propose(chosen, fakes.services(chatting.Judge()), chatting.Ear())
    external.close(outcome.message)
    thread.join(10)
    assert told[0][0].startswith("accepted") and told[0][1]


def test_a_run_that_was_cut_off_goes_on_with_another_client(checkout):
    import threading

    from fasttrack import lane

    judge, texts = chatting.Judge(), []
    judge.interrupt_after = 1

    def visit(external, *kernels, finish):
        for body in kernels:
            external.call("write_candidate", {"files": [{"path": "copy.py", "text": body}]})
            texts.append(external.call("evaluate", {})[0])
        texts.append(external.call("history", {})[0])
        if finish:
            texts.append(external.call("finish", {})[0])

    def lasts(external, work, *arguments, **options):
        thread = threading.Thread(target=visit, args=(external, *arguments), kwargs=options)
        thread.start()
        outcome = work()
        external.close(outcome.message)
        thread.join(10)
        return outcome

    one, parts = External(), fakes.services(judge)
    chosen = lane.Options(
        model="toy", op="copy", checkout=checkout, agent="external", external=one, rounds=5, hardware=("h200",)
    )
    lasts(
        one,
        lambda: lane.propose(chosen, parts, chatting.Ear()),
        fakes.KERNEL + "# WRONG\n",
        fakes.KERNEL + "# FASTER\n",
        finish=False,
    )
    assert texts[0].startswith("rejected") and "nothing finished is lost" in texts[1]
    judge.interrupt_after, two = None, External()
    texts.clear()
    outcome = lasts(
        two,
        lambda: lane.resume("toy", None, None, checkout, parts, chatting.Ear(), two),
        fakes.KERNEL + "# FASTER\n",
        finish=True,
    )
    assert outcome.exit_code == 0 and texts[0].startswith("accepted")
    assert len(texts[1].splitlines()) == 2 and "off by 3" in texts[1]


def test_without_a_server_an_external_run_is_refused(checkout):
    from fasttrack import lane
    from fasttrack_validation.errors import UserError

    with pytest.raises(UserError, match="nothing serves the tools") as error:
        lane.propose(
            lane.Options(model="toy", op="copy", checkout=checkout, agent="external"),
            fakes.services(fakes.Judge()),
            chatting.Ear(),
        )
    assert "fasttrack mcp toy --op copy" in error.value.how


def test_the_port_is_on_the_loopback_interface_alone():
    external, found = External(), {}
    thread = mcp_server.serve_http(external, 0, lambda url, token: found.update(url=url, token=token))
    try:
        port = int(found["url"].rsplit(":", 1)[1].partition("/")[0])
        table = Path("/proc/net/tcp").read_text().splitlines()[1:]
        bound = [
            line.split()[1] for line in table if line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "0A"
        ]
        assert bound == [f"0100007F:{port:04X}"]
    finally:
        external.close("done")
        thread.join(15)
