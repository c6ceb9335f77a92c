"""`fasttrack validate MODEL --stage numerics --stock-url URL --candidate-url URL`: two servers, token by token."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import typer

from fasttrack_validation.errors import UserError
from fasttrack_validation.numerics.servers import run as comparison
from fasttrack_validation.numerics.servers.client import Server
from fasttrack_validation.numerics.servers.compare import ServersVerdict
from fasttrack_validation.numerics.servers.forms import Refused
from fasttrack_validation.numerics.whole_model.findings import Result

from . import model_dir, storage
from .run_directory import alone, own
from .validate_options import Form, check

CODES = {Result.PASS: 0, Result.FAIL: 1, Result.INCONCLUSIVE: 3}
REFUSED = 2
VERDICT, RECORDS = "verdict.json", comparison.RECORDS


def meant(options: Mapping[str, Any]) -> bool:
    """Whether servers are to be compared, or were in the directory that is read again."""
    urls = options["stock_url"] or options["candidate_url"]
    return bool(urls or (options["recompute"] and options["out"] and (options["out"] / comparison.RECORDS).exists()))


def run(model: str, options: Mapping[str, Any]) -> NoReturn:
    """Asks what is not known yet, shows what follows, and ends with the verdict's exit code; 2 for what is refused."""
    model_dir.load(model)
    out = options["out"] or storage.home() / "validate" / model / "numerics-servers"
    check(Form.SERVERS_AGAIN if options["recompute"] else Form.SERVERS, options["given"])
    if options["recompute"]:
        _show(comparison.rejudged(out), out, options["as_json"])
    if not (options["stock_url"] and options["candidate_url"]):
        raise UserError("one server is compared with nothing", "give both --stock-url and --candidate-url")
    file = Path(options["tokens"])
    if not file.is_file():
        what = "servers need prompts" if options["tokens"].isdigit() else f"--tokens {file}: no such file"
        raise UserError(what, 'give --tokens FILE, prompts as lines of {"id": "a", "tokens": [1, 2, 3]}')
    settings = comparison.Settings(top=options["top"], piece=options["piece"], replicas=options["replicas"])
    servers = _servers(options)
    try:
        # Nothing is thrown away before there is somebody to ask.
        arms = comparison.Arms(servers)
        with storage.writing(out):
            own(out, (RECORDS, VERDICT), begun=RECORDS, fresh=options["fresh"])
            out.mkdir(parents=True, exist_ok=True)
        with storage.writing(out), alone(out):
            verdict = comparison.compare(arms, file, out, settings, _progress(options["as_json"]))
            (out / VERDICT).write_text(verdict.canonical_json() + "\n", "utf-8")
    except Refused as refused:
        if options["as_json"]:
            print(json.dumps({"result": "refused", "reason": refused.reason, "text": refused.what}))
        else:
            print(f"not compared ({refused.reason}): {refused.what}")
        raise typer.Exit(REFUSED) from None
    finally:
        for server in servers.values():
            server.close()
    _show(verdict, out, options["as_json"])


def _servers(options: Mapping[str, Any]) -> dict[str, Server]:
    urls = {"stock": options["stock_url"], "candidate": options["candidate_url"], "oracle": options["oracle_url"]}
    urls |= {f"control-{n}": url for n, url in enumerate(options["control_url"] or (), 1)}
    declared = _declared(options["declare"], [name for name, url in urls.items() if url])
    return {name: Server(name, url, declared.get(name)) for name, url in urls.items() if url}


def _declared(file: Path | None, names: list[str]) -> dict[str, dict[str, str]]:
    if file is None:
        return {}
    try:
        found = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: {error}", 'write JSON like {"stock": {"dtype": "bfloat16"}}') from error
    fine = isinstance(found, dict) and all(
        isinstance(fields, dict) and all(isinstance(value, str) for value in fields.values())
        for fields in found.values()
    )
    if not fine or (set(found) - set(names)):
        raise UserError(f"{file}: no account of {', '.join(names)}", 'write JSON like {"stock": {"dtype": "bfloat16"}}')
    return found


def _progress(quiet: bool):
    terminal = sys.stderr.isatty()

    def say(arm: str, known: int) -> None:
        if not quiet:
            text = f"{arm}: {known} tokens"
            print(f"\r{text}" if terminal else text, end="" if terminal else "\n", file=sys.stderr, flush=True)

    return say


def _show(verdict: ServersVerdict, out: Path, as_json: bool) -> NoReturn:
    if as_json:
        print(json.dumps({"out": str(out), **verdict.model_dump(mode="json")}))
    else:
        print("\n".join(lines(verdict, out)))
    raise typer.Exit(CODES[verdict.result])


def lines(verdict: ServersVerdict, out: Path) -> list[str]:
    """The verdict as a person reads it."""
    found = ["", f"{verdict.result}: {verdict.text}"]
    same = " (all of them the stock server to the last bit)" if verdict.deterministic else ""
    found.append(f"{verdict.tokens} tokens against {verdict.reference}; noise: {', '.join(verdict.noise)}{same}")
    head = f"{'tokens':>8} {'median':>10} {'p99.9':>10} {'maximum':>10}"
    found.append(f"{'metric':<12} {'positions':<12} {'path':<12} {head}")
    for s in verdict.spreads:
        figures = f"{s.values:>8} {s.median:>10.3g} {s.p999:>10.3g} {s.maximum:>10.3g}"
        found.append(f"{s.metric:<12} {s.band:<12} {s.path:<12} {figures}")
    flips = verdict.flips
    counts = ", ".join(f"{path} {count}" for path, count in flips.flips.items())
    found.append(f"top-1 flips: {counts}; of the candidate's {flips.ties} ties, {flips.bugs} bugs")
    found.append(f"  (a flip is a tie where the reference's margin is at most {flips.margin_limit:.3g} nats)")
    found += [f"  {check.result}: {check.message}" for check in verdict.checks if check.message]
    found.append("largest changes (prompt, position, token: reference, stock, candidate):")
    for w in verdict.worst[:5]:
        found.append(f"  {w.prompt} {w.position} {w.token}: {w.reference:.4f} {w.stock:.4f} {w.candidate:.4f}")
    return [*found, f"records: {out}"]
