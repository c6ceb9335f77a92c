"""GitHub attestations checked offline, by the real library, in a Sigstore of our own."""

import base64
import json

import pytest
from fasttrack import bundles
from fasttrack.signatures import Refused, Signed
from fasttrack_validation.claims.cells import Measured, NotMeasured
from fasttrack_validation.errors import UserError
from fasttrack import evidence
from gated_change import INSIDE, M, POLICY, STATEMENT, ids, parse_manifest, run_gate, statement, tree

pytest.importorskip("sigstore", reason="sigstore is not installed (extra: attest)")
from sigstore_world import World  # noqa: E402 - needs cryptography, which comes with sigstore

ATTESTERS = b'[[attester]]\nname = "gpu runner"\nrepository = "lane/stack"\nworkflow = ".github/workflows/gpu.yml"\n'
DATA = b'{"figures": 1}\n'


@pytest.fixture(scope="module")
def world() -> World:
    return World()


def verify(world: World, bundle: dict | bytes, data: bytes = DATA, attesters: bytes = ATTESTERS, root: bytes | None = None):
    raw = bundle if isinstance(bundle, bytes) else json.dumps(bundle).encode()
    return bundles.verify(data, raw, attesters, root or world.root())


def test_a_bundle_of_a_named_workflow_counts(world):
    assert verify(world, world.bundle(DATA)) == Signed(signer="gpu runner (lane/stack)")
    hosted = ATTESTERS + b'runner = "self-hosted"\n'
    assert isinstance(verify(world, world.bundle(DATA), attesters=hosted), Signed)


def edited(world: World, *path, value=None, change=None) -> dict:
    """A bundle with one value at `path` replaced, or changed."""
    made = json.loads(json.dumps(world.bundle(DATA)))
    at = made
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value if change is None else change(at[path[-1]])
    return made


def flipped(text: str) -> str:
    """The same signature with its last bit turned over."""
    raw = base64.b64decode(text)
    return base64.b64encode(raw[:-1] + bytes([raw[-1] ^ 1])).decode()


ENTRY = ("verificationMaterial", "tlogEntries", 0)
OTHER = World


@pytest.mark.parametrize(
    ("reason", "make"),
    [
        ("other_bytes", lambda w: w.bundle(b"other\n")),
        ("other_bytes", lambda w: w.bundle(DATA, kind="text/plain")),
        ("unknown_attester", lambda w: w.bundle(DATA, repository="evil/stack")),
        ("unknown_attester", lambda w: w.bundle(DATA, workflow=".github/workflows/test.yml")),
        ("unknown_attester", lambda w: w.bundle(DATA, ref="refs/pull/7/merge")),
        ("invalid", lambda w: World().bundle(DATA)),
        ("invalid", lambda w: edited(w, "dsseEnvelope", "payload", value="e30=")),
        ("invalid", lambda w: edited(w, "dsseEnvelope", "signatures", 0, "sig", change=flipped)),
        ("invalid", lambda w: edited(w, *ENTRY, "integratedTime", value="1900000000")),
        ("invalid", lambda w: edited(w, *ENTRY, "inclusionPromise", "signedEntryTimestamp", value="AAAA")),
        ("invalid", lambda w: edited(w, *ENTRY, "inclusionProof", "rootHash", value="AAAA")),
        ("malformed", lambda w: b"{}"),
        ("malformed", lambda w: b"\xff"),
        ("malformed", lambda w: b"[" * 5000),
        ("malformed", lambda w: b" " * (bundles.MAX_BYTES + 1)),
    ],
)
def test_each_way_not_to_count(world, reason, make):
    answer = verify(world, make(world))
    assert isinstance(answer, Refused) and answer.reason == reason, answer


def test_another_runner_than_the_base_asks_for(world):
    hosted = ATTESTERS + b'runner = "github-hosted"\n'
    assert verify(world, world.bundle(DATA), attesters=hosted).reason == "unknown_attester"


@pytest.mark.parametrize("bad", [b"", b'[[attester]]\nname = "x"\n', ATTESTERS + b"surprise = 1\n"])
def test_the_bases_own_files_have_to_be_in_order(world, bad):
    with pytest.raises(UserError, match="attesters.toml"):
        verify(world, world.bundle(DATA), attesters=bad)
    with pytest.raises(UserError, match="trust root"):
        verify(world, world.bundle(DATA), root=b"{}")


def measured() -> bytes:
    cell = evidence.PerformanceCell(
        hardware="H200", tp=8, bucket="1", stock=NotMeasured(reason="no"),
        candidate=Measured(microseconds=7.5, low=7.4, high=7.6, repetitions=5, method="graph", hardware="H200"),
    )  # fmt: skip
    return statement(INSIDE, performance=(cell,))


def gated(forge, world, files: dict, base: dict):
    start = forge.commit(tree({"README.md": b"# alpha\n"}, POLICY) | base)
    head = forge.commit(tree({"README.md": b"# alpha\n"} | INSIDE | files, POLICY) | base, start)
    return run_gate(forge.path, start, head, "alpha", parse_manifest=parse_manifest)


def test_the_gate_counts_an_attested_measurement(forge, world):
    data = measured()
    bundle = {bundles.place(data): json.dumps(world.bundle(data)).encode()}
    base = {bundles.ATTESTERS: ATTESTERS, bundles.ROOT: world.root()}
    result = gated(forge, world, {STATEMENT: data} | bundle, base)
    assert result.exit_code == 0 and result.draft_only == ()
    assert [one.signer for one in result.attestations] == ["gpu runner (lane/stack)"]
    # Nobody trusted by the base; a bundle over something else.
    result = gated(forge, world, {STATEMENT: data} | bundle, {})
    assert (ids(result, "attestation"), result.exit_code) == (["bundle.no_attesters"], 1)
    result = gated(forge, world, {STATEMENT: data, f"{bundles.DIRECTORY}/{'0' * 64}.sigstore.json": b"{}"}, base)
    assert (ids(result, "attestation"), result.exit_code) == (["bundle.orphan"], 1)


def test_attesters_that_the_head_brings_are_not_asked(forge, world):
    data = measured()
    start = forge.commit(tree({"README.md": b"# alpha\n"}, POLICY))
    brought = {bundles.ATTESTERS: ATTESTERS, bundles.ROOT: world.root()}
    inside = INSIDE | {STATEMENT: data, bundles.place(data): json.dumps(world.bundle(data)).encode()}
    head = forge.commit(tree({"README.md": b"# alpha\n"} | inside, POLICY) | brought, start)
    result = run_gate(forge.path, start, head, "alpha", parse_manifest=parse_manifest)
    assert "confinement.policy_change" in ids(result, "confinement") and ids(result, "attestation") == ["bundle.no_attesters"]
    assert M
