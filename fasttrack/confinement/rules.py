"""Every rule of confinement: a stable id, what it says, and how to go on. Findings name rules by id."""

from typing import NamedTuple


class Rule(NamedTuple):
    """One rule. `notice`: does not fail the gate, but a person has to look before a change leaves draft."""

    id: str
    title: str
    remedy: str
    notice: bool = False


_TABLE = (
    # The range and the difference
    Rule("confinement.outside", "a path outside the model directory changes",
         "undo the change, or send it as a pull request of its own through ordinary review"),
    Rule("confinement.policy_change", "what judges the change is changed by it",
         "send it apart: rules, contracts and the gate change only by a person's decision, from the base branch"),
    Rule("confinement.history", "a commit of the range touches what the outcome does not show",
         "squash the range into one commit, so that what was reviewed is all that is kept"),
    Rule("confinement.conflict", "the change does not merge into the base",
         "rebase the branch onto the base and run the gate again"),
    Rule("confinement.unrelated_history", "base and head have no common ancestor",
         "start the branch from the base"),
    Rule("confinement.range_too_long", "the range has more commits than can be checked",
         "squash the range"),
    Rule("confinement.empty", "the outcome equals the base",
         "nothing to check: commit a change under the model directory"),
    Rule("confinement.deleted_proof", "tests or evidence of the model are deleted",
         "say in the owner's paragraph why they are no longer needed", notice=True),
    # Names
    Rule("confinement.encoding", "a name is not UTF-8", "rename it in ASCII"),
    Rule("confinement.control_character", "a control, zero-width or other invisible character",
         "remove the character"),
    Rule("confinement.bidi", "a character that reorders the text around it",
         "remove the character: what is shown is not what runs"),
    Rule("confinement.nfc", "a name is not in Unicode normal form C",
         "rename it in ASCII: two spellings of one name are one file on some systems"),
    Rule("confinement.non_ascii", "a name is not ASCII", "rename it in ASCII: lookalike letters cannot be reviewed"),
    Rule("confinement.backslash", "a backslash in a name", "rename it: a backslash separates directories elsewhere"),
    Rule("confinement.reserved_name", "a name that some file systems cannot hold or read differently",
         "rename it with letters, digits, '_', '-' and '.' between them"),
    Rule("confinement.git_alias", "a name that git or a file system may take for .git", "rename it"),
    Rule("confinement.case_collision", "two names differ only by case or normal form",
         "rename one: they are one file on some systems"),
    # Object types and modes
    Rule("confinement.malformed_tree", "a tree object is malformed", "commit again with an ordinary git"),
    Rule("confinement.mode", "a file is not mode 100644", "git update-index --chmod=-x FILE, and commit"),
    Rule("confinement.symlink", "a symbolic link", "commit the file itself"),
    Rule("confinement.gitlink", "a submodule", "commit the files themselves"),
    # Contents
    Rule("confinement.binary", "contents that nobody can read", "commit the source; the judge builds it itself"),
    Rule("confinement.size", "more bytes or files than the limits allow",
         "split or compress evidence; keep sources short"),
    Rule("confinement.compressed", "compressed evidence that does not unpack to text within the limits",
         "write it again as gzip of UTF-8 text"),
    Rule("confinement.file_type", "a kind of file that does not belong in this place",
         "sources and text: .py .cu .cuh .h .md .json; evidence: also .jsonl .gz .csv .json.sig; report: also .html .json.sig"),
    Rule("confinement.active_content", "a page that runs code or loads from elsewhere",
         "render it again with `fasttrack report`: a report is one self-contained file without scripts"),
    Rule("confinement.generated_marker", "a marker that exempts a source from lint or review", "remove the marker"),
    # Git attributes and tool configuration
    Rule("confinement.gitattributes", "git attributes change how the directory is shown, merged or exported",
         "delete the file; the repository's own .gitattributes governs"),
    Rule("confinement.ignore_file", "an ignore file hides files from status, images or tools", "delete the file"),
    Rule("confinement.tool_configuration", "a file that tools pick up and obey",
         "delete it; tools are configured at the top of the repository"),
    # What Python sources say
    Rule("content.syntax", "a Python source that does not parse", "fix the syntax"),
    Rule("content.import", "an import beyond torch, triton, cuda, the safe standard modules and the model itself",
         "remove the import; kernels need nothing else, and whatever else is needed is passed in"),
    Rule("content.relative_import", "a relative import that leaves the model directory",
         "copy what is needed into the model directory"),
    Rule("content.forbidden_name", "a name that reaches beyond the module: code execution, files, processes, globals",
         "write the code out, or have the host pass the value in"),
    Rule("content.global_patch", "an assignment into an imported module or object",
         "keep state in objects that the module itself creates"),
    Rule("content.identifier", "an identifier that is not ASCII", "spell it in ASCII"),
    Rule("content.include", "an include that leaves the model directory or embeds a file",
         "include CUDA's own headers, or files of the model directory"),
)  # fmt: skip

RULES: dict[str, Rule] = {rule.id: rule for rule in _TABLE}
