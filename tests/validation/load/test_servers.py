"""The file of servers is strict, and a server's statements cannot contradict the cells that it serves."""

import pytest

from fasttrack_validation.errors import UserError
from fasttrack_validation.load import servers

GOOD = """
hardware = "gb300"
[load]
token_ids = [100, 200]
[[server]]
arm = "stock"
url = "http://127.0.0.1:8000/v1"
model = "tiny"
tp = 8
speculation = "off"
[server.conditions.identity]
commit = "abc"
released = 2026-08-10
[server.conditions.hardware]
driver = "580"
"""


def read(tmp_path, text):
    path = tmp_path / "servers.toml"
    path.write_text(text)
    return servers.read(path)


def test_a_server_becomes_a_record(tmp_path):
    (one,) = read(tmp_path, GOOD.replace("2026-08-10", '"2026-08-10"')).server
    record = one.record(workload={"concurrency": 4})
    assert record.identity.commit == "abc" and record.topology.tp == 8 and record.workload.concurrency == 4
    assert str(record.identity.released) == "2026-08-10"
    # What nobody stated is unknown, and not a default.
    assert record.hardware.gpus is None and record.engine.prefix_cache is None
    assert record.speculation.method == "off"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('tp = 8', 'tp = 8\ncolour = "red"', "colour"),
        ("http://", "ftp://", "not an address"),
        ('driver = "580"', 'driver = "580"\nsku = "h200"', "another card"),
        ('driver = "580"', 'drivers = "580"', "drivers"),
        ('[server.conditions.hardware]', '[server.conditions.topology]\ntp = 4\n[server.conditions.hardware]', "topology.tp is 4"),
        ('[server.conditions.hardware]', '[server.conditions.speculation]\nmethod = "mtp"\n[server.conditions.hardware]',
         "method is 'mtp'"),
        ('[server.conditions.hardware]', '[server.conditions.result]\nfailed = 0\n[server.conditions.hardware]', "measured"),
        ('token_ids = [100, 200]', 'token_ids = [200, 100]', "token_ids"),
        ('token_ids = [100, 200]', 'prompts = "nowhere.jsonl"', "nowhere.jsonl"),
        ('hardware = "gb300"', 'hardware = "gb300"\nhardware = "h200"', "overwrite"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(tmp_path, old, new, said):
    text = GOOD.replace("2026-08-10", '"2026-08-10"')
    assert old in text
    with pytest.raises(UserError, match=said):
        read(tmp_path, text.replace(old, new))


def test_a_place_has_one_server_of_an_arm(tmp_path):
    text = GOOD.replace("2026-08-10", '"2026-08-10"')
    block = text[text.index("[[server]]") :]
    with pytest.raises(UserError, match="two are stock"):
        read(tmp_path, text + block)
    both = read(tmp_path, text + block.replace('"stock"', '"specialised"'))
    assert len(list(both.at(8, "off"))) == 2 and list(both.at(16, "off")) == []
