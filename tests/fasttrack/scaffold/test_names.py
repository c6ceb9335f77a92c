"""What a new model may be called."""

import keyword

import pytest
from fasttrack.confinement.names import check_name
from fasttrack.model_dir import Model
from fasttrack.scaffold import names
from fasttrack_validation.errors import UserError
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize("name", ["kimi_k3", "deepseek_v4_1_flash", "a", "x" * names.LONGEST])
def test_ordinary_names_are_free(name):
    names.check(name)
    names.check_free(name, "models", ["kimi_k3_other", "__init__.py"])


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("DeepSeek-V4.1-Flash", "deepseek_v4_1_flash"),
        ("Kimi K3", "kimi_k3"),
        ("kimi_k3_", "kimi_k3"),
        ("kimi__k3", "kimi_k3"),
        ("../kimi", "kimi"),
        ("models/kimi", "models_kimi"),
        ("/etc/passwd", "etc_passwd"),
        ("4bit", "bit"),
        ("modèle", "modele"),
        ("class", "class_model"),
        ("match", "match_model"),
        ("CON", "con_model"),
        ("nul", "nul_model"),
        ("lpt1", "lpt1_model"),
        ("conftest", "conftest_model"),
        ("a\nb", "a_b"),
        ("a.py", "a_py"),
        ("x" * (names.LONGEST + 1), "x" * names.LONGEST),
    ],
)
def test_a_name_that_cannot_be_one_gets_the_nearest(name, near):
    with pytest.raises(UserError) as caught:
        names.check(name)
    assert repr(near) in caught.value.how
    names.check(near)


@pytest.mark.parametrize("name", ["", "_", "..", "42", "кими", "模型"])
def test_where_nothing_is_left_no_name_is_made_up(name):
    assert names.suggestion(name) is None
    with pytest.raises(UserError):
        names.check(name)


@given(st.text(max_size=60) | st.sampled_from([*keyword.kwlist, *keyword.softkwlist]))
def test_what_passes_is_one_directory_one_package_and_one_manifest_name_everywhere(text):
    try:
        names.check(text)
    except UserError:
        near = names.suggestion(text)
        if near is not None and len(near) <= names.LONGEST:
            names.check(near)
        return
    assert text.isidentifier() and text.isascii() and text == text.lower() and not keyword.iskeyword(text)
    assert list(check_name(f"models/{text}")) == []
    Model(name=text, title="t", contract=text, owner="o", review_by="2027-01-01", remove_by="2028-01-01")


@pytest.mark.parametrize("entry", ["kimi_k3", "Kimi_K3", "KIMI_K3.py", "kimi_k3.py"])
def test_a_name_that_a_file_system_takes_for_another_is_not_free(entry):
    with pytest.raises(UserError, match="exists already"):
        names.check_free("kimi_k3", "models", ["other", entry])
