//! The commands of a session.

/// Name, arguments, and what the command does.
pub(super) const COMMANDS: [(&str, &str, &str); 15] = [
    (
        "ls",
        "[-l] [PATH…]",
        "list a directory; * is marked, + has marked entries below",
    ),
    ("cd", "[DIR]", "change the directory"),
    ("pwd", "", "print the directory"),
    ("add", "[PATH…]", "mark entries, with everything below them"),
    (
        "delete",
        "[PATH…]",
        "remove marks, also below a marked directory",
    ),
    (
        "marked",
        "",
        "print the marks: + is added, - is deleted again",
    ),
    (
        "find",
        "PATTERN",
        "print the paths that match a pattern as in .gitignore",
    ),
    (
        "versions",
        "PATH",
        "print which backups of the repository have other versions",
    ),
    ("extract", "[DIR]", "restore the marked entries into DIR"),
    (
        "setmodes",
        "[DIR]",
        "set owner, mode and times of the marked directories in DIR",
    ),
    (
        "verbose",
        "",
        "print more with ls and extract, or less again",
    ),
    ("what", "", "print which backup this is, of when"),
    ("prompt", "", "leave out the prompt, or show it again"),
    ("help", "", "print this list"),
    ("quit", "", "end"),
];

/// Names of the same commands in other programs.
const SYNONYMS: [(&str, &str); 9] = [
    ("dir", "ls"),
    ("mark", "add"),
    ("del", "delete"),
    ("rm", "delete"),
    ("unmark", "delete"),
    ("restore", "extract"),
    ("exit", "quit"),
    ("xit", "quit"),
    ("?", "help"),
];

/// Returns the command that a word names: whole, by another name, or by a begin that only one has.
pub(super) fn command(word: &str) -> Option<&'static str> {
    let names = COMMANDS.iter().map(|(name, ..)| *name);
    if let Some(exact) = names.clone().find(|name| *name == word) {
        return Some(exact);
    }
    if let Some((_, name)) = SYNONYMS.iter().find(|(other, _)| *other == word) {
        return Some(name);
    }
    let mut beginning = names.filter(|name| name.starts_with(word));
    let first = beginning.next()?;
    beginning.next().is_none().then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_named_whole_or_by_its_begin() {
        for (word, name) in [
            ("ls", "ls"),
            ("l", "ls"),
            ("e", "extract"),
            ("del", "delete"),
            ("x", ""),
            ("wh", "what"),
            ("v", ""),
        ] {
            assert_eq!(command(word).unwrap_or_default(), name, "{word}");
        }
    }
}
