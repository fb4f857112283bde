//! Options that rsync's users type without thinking, behind `copy`.
//!
//! Most of them name what a copy always does, and are dropped. Those that would change what is
//! copied are answered. A word of letters is rsync's if it has a letter that `copy` lacks, or `r`;
//! every other word is ours.

use super::command_words::{CommandWords, LinePart, find_letters, find_options};
use clap::Command;
use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::{OsStrExt, OsStringExt},
};

/// Letters that show that a word is rsync's: a copy always does this.
const SHOWN: &[u8] = b"arHAXlpgoDSWz";

/// Letters that have another meaning here, and are dropped from a word that is rsync's.
const DROPPED: &[u8] = b"thP";

/// Options for what a copy always does, or that only concern how it is shown.
const LONG: [&str; 18] = [
    "archive",
    "recursive",
    "links",
    "perms",
    "times",
    "group",
    "owner",
    "devices",
    "specials",
    "hard-links",
    "acls",
    "xattrs",
    "sparse",
    "whole-file",
    "partial",
    "progress",
    "human-readable",
    "stats",
];

const ANSWERS: [(&[&str], &str); 14] = [
    (
        &[
            "-u",
            "--update",
            "--ignore-existing",
            "--existing",
            "--size-only",
        ],
        "a copy replaces every file whose size or time differs; -n lists them first, and --exclude keeps one",
    ),
    (
        &["-L", "--copy-links", "-k", "--copy-dirlinks"],
        "a copy keeps links as links; name what a link leads to as a SRC of its own",
    ),
    (
        &["-R", "--relative"],
        "name the whole target, as in `fullbore copy /srv/www /mnt/clone/srv/www`",
    ),
    (
        &["-b", "--backup", "--backup-dir", "--suffix"],
        "a copy keeps no earlier files; `fullbore backup SRC --to REPO` keeps every state",
    ),
    (
        &["--link-dest", "--compare-dest", "--copy-dest"],
        "a copy has one state; `fullbore backup SRC --to REPO` keeps all of them and stores each content once",
    ),
    (
        &[
            "-i",
            "--itemize-changes",
            "--info",
            "--out-format",
            "--log-file",
        ],
        "-v lists new and changed entries, -n does without a change, and --json is for programs",
    ),
    (
        &["--bwlimit"],
        "a copy has no limit of its own; `fullbore backup` has --max-rate",
    ),
    (
        &["--files-from"],
        "name each file as a SRC, or use --exclude and --include; `fullbore backup` has --files-from",
    ),
    (
        &["-m", "--prune-empty-dirs", "--max-size", "--min-size"],
        "a copy leaves out by --exclude alone, and copies empty directories",
    ),
    (
        &["--inplace", "--append", "--append-verify", "--partial-dir"],
        "it does that by itself: a large file that is there is changed block by block, and goes on where it was interrupted",
    ),
    (
        &[
            "--delete-before",
            "--delete-during",
            "--delete-after",
            "--delete-delay",
            "--del",
        ],
        "use --delete: deletions are counted before the first change, and done behind all files",
    ),
    (
        &["--rsh"],
        "another host is ssh://HOST/PATH, and --ssh COMMAND its shell",
    ),
    (
        &["--mkpath"],
        "make the directory above DST first: a copy does not, because its disk may not be mounted",
    ),
    (
        &[
            "--remove-source-files",
            "--timeout",
            "--chmod",
            "--chown",
            "--usermap",
            "--groupmap",
        ],
        "a copy changes nothing at its source, and gives each file the owner and mode that it has there",
    ),
];

/// Returns the answer to an option of rsync that `copy` does not have.
pub(super) fn answer(option: &str) -> Option<&'static str> {
    let found = ANSWERS
        .iter()
        .find(|(options, _)| options.contains(&option));
    found.map(|(_, instead)| *instead)
}

/// Returns the words without those options of rsync behind `copy` that say what a copy does anyway.
/// `-z` becomes `--compress=zstd`.
pub(super) fn without_habits(program: &Command, words: Vec<OsString>) -> Vec<OsString> {
    let Some((begin, command)) = begin_of_copy(program, &words) else {
        return words;
    };
    let mut words = words.into_iter();
    let mut left: Vec<OsString> = words.by_ref().take(begin).collect();
    while let Some(word) = words.next() {
        let bytes = word.as_bytes();
        if bytes == b"--" {
            left.push(word);
            left.extend(words.by_ref());
        } else if let Some(long) = bytes.strip_prefix(b"--") {
            if is_ours(command, &word) {
                let has_value = takes_next(command, &word);
                left.push(word);
                left.extend(words.by_ref().take(usize::from(has_value)));
            } else if !is_dropped(long) {
                left.push(word);
            }
        } else if bytes.len() > 1 && bytes.starts_with(b"-") {
            let (kept, is_compressed) = kept_letters(command, &bytes[1..]);
            left.extend(is_compressed.then(|| "--compress=zstd".into()));
            if let Some(word) = kept {
                let has_value = takes_next(command, &word);
                left.push(word);
                left.extend(words.by_ref().take(usize::from(has_value)));
            }
        } else {
            left.push(word);
        }
    }
    left
}

/// Returns the place behind the verb, if that is `copy`.
fn begin_of_copy<'a>(program: &'a Command, words: &[OsString]) -> Option<(usize, &'a Command)> {
    let mut place = 0;
    for part in CommandWords::read(program, words.to_vec()).parts {
        match part {
            LinePart::Options { words, .. } => place += words.len(),
            LinePart::Verb(command) if command.get_name() == "copy" => {
                return Some((place + 1, command));
            }
            _ => return None,
        }
    }
    None
}

fn is_ours(command: &Command, word: &OsStr) -> bool {
    !find_options(command, word).is_empty()
}

/// Returns whether the next word is the value of the last option in this one.
fn takes_next(command: &Command, word: &OsStr) -> bool {
    find_options(command, word).last().is_some_and(|last| {
        let takes = last.arg.get_action().takes_values() && !last.arg.is_require_equals_set();
        takes && last.value.is_none()
    })
}

fn is_dropped(long: &[u8]) -> bool {
    LONG.iter().any(|name| name.as_bytes() == long)
        || long.starts_with(b"info=")
        || long == b"no-inc-recursive"
}

/// Returns the word of these letters without those of rsync, if any is left, and whether one of them
/// asks for compression.
fn kept_letters(command: &Command, letters: &[u8]) -> (Option<OsString>, bool) {
    let as_word = |letters: &[u8]| OsString::from_vec([b"-", letters].concat());
    // The letters before a value: `-eavz` leaves out what is called `avz`.
    let ours = find_letters(command, letters);
    let is_value = |option: &super::command_words::FoundOption<'_>| {
        option.value.is_some() && option.arg.get_short() != Some('r')
    };
    let is_rsync =
        letters.iter().any(|letter| SHOWN.contains(letter)) && !ours.iter().any(is_value);
    if !is_rsync {
        return (Some(as_word(letters)), false);
    }
    let is_kept = |letter: &&u8| !SHOWN.contains(letter) && !DROPPED.contains(letter);
    let kept: Vec<u8> = letters.iter().filter(is_kept).copied().collect();
    let word = (!kept.is_empty()).then(|| as_word(&kept));
    (word, letters.contains(&b'z'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::program;

    fn left(line: &str) -> String {
        let words = line.split(' ').map(OsString::from).collect();
        let left = without_habits(&program(), words);
        left.join(OsStr::new(" ")).into_string().unwrap()
    }

    #[test]
    fn letters_of_rsync_are_dropped_and_ours_are_kept() {
        for (line, wanted) in [
            ("copy -a a b", "copy a b"),
            ("copy -rv a b", "copy -v a b"),
            ("copy -r a b", "copy a b"),
            ("copy a b -avhP --delete", "copy a b -v --delete"),
            ("copy -rlptgoD a b", "copy a b"),
            ("copy -aHAXx a b", "copy -x a b"),
            ("copy -avz a b", "copy --compress=zstd -v a b"),
            ("copy -ane *.tmp a b", "copy -ne *.tmp a b"),
            (
                "copy -an --archive --progress --info=progress2 a b",
                "copy -n a b",
            ),
            ("copy -rt a b", "copy a b"),
            ("copy -au a b", "copy -u a b"),
        ] {
            assert_eq!(left(line), wanted, "{line}");
        }
    }

    #[test]
    fn words_that_are_ours_stay_as_they_are() {
        for line in [
            "copy -v a b",
            "copy R D -t nightly",
            "copy -P web a b",
            "copy -e -a a b",
            "copy -eavz a b",
            "copy --exclude -a a b",
            "copy a b -- -a",
            "copy -h",
            "list R -r",
            "-r R copy D",
            "restore R -a",
            "backup copy -a",
        ] {
            assert_eq!(left(line), line);
        }
    }

    #[test]
    fn each_option_that_is_answered_is_none_of_copy() {
        let program = program();
        let command = program.find_subcommand("copy").unwrap();
        for option in ANSWERS.iter().flat_map(|(options, _)| *options) {
            assert!(!is_ours(command, OsStr::new(option)), "{option}");
            assert!(answer(option).is_some());
        }
        assert_eq!(answer("--delete"), None);
    }
}
