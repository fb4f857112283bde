//! What becomes of a run whose words nobody reads, or that cannot be written.

use crate::runs;
use crate::runs::{FULLBORE, Ran, sample, shell, temp};
use std::{fs, path::Path};

/// Ways to run the program where what it prints is lost; the last word is its exit code.
const LOST: [&str; 5] = [
    "($fullbore ARGS; echo $? > code) 2>&1 | true; cat code",
    "{ sleep 0.3; $fullbore ARGS; echo $? > code; } 2>&1 | true; cat code",
    "$fullbore ARGS > /dev/full 2>&1; echo $?",
    "$fullbore ARGS 2> /dev/full > /dev/null; echo $?",
    "$fullbore ARGS > /dev/null 2>&-; echo $?",
];

/// A line of shell in `dir`, where `$fullbore` is the program.
fn at(dir: &Path, line: &str) -> Ran {
    shell(
        &format!("cd \"$1\"; fullbore=$2; {line}"),
        args![dir, FULLBORE],
    )
}

fn code(dir: &Path, lost: &str, args: &str) -> String {
    let ran = at(dir, &lost.replace("ARGS", args));
    assert!(!ran.err.contains("panicked"), "{args}: {}", ran.err);
    ran.out.trim().to_owned()
}

#[test]
fn a_run_that_does_something_does_it_and_says_so_in_its_exit_code() {
    let dir = temp();
    sample(&dir.path().join("t"));
    for (n, lost) in LOST.into_iter().enumerate() {
        for json in ["", "--json"] {
            let (repository, target) = (format!("r{n}{json}"), format!("to{n}{json}"));
            assert_eq!(
                code(
                    dir.path(),
                    lost,
                    &format!("backup t --to {repository} {json}")
                ),
                "0",
                "{lost} {json}"
            );
            assert_eq!(
                code(
                    dir.path(),
                    lost,
                    &format!("restore {repository} --to {target} {json}")
                ),
                "0",
                "{lost} {json}"
            );
            at(
                dir.path(),
                &format!("$fullbore verify {repository} --against {target}"),
            )
            .ends_with(0);
            let delta = format!("restore {repository} --to {target} --delta {json}");
            assert_eq!(code(dir.path(), lost, &delta), "0", "{lost} {json}");
            for args in [
                "pin REPO@latest",
                "tag REPO@latest a=b",
                "prune REPO",
                "verify REPO",
            ] {
                let args = format!(
                    "{} {}",
                    args.replace("REPO", &repository),
                    if args.contains('@') { "" } else { json }
                );
                assert_eq!(code(dir.path(), lost, &args), "0", "{lost}: {args}");
            }
        }
    }
}

#[test]
fn damage_is_in_the_exit_code_although_nobody_reads_of_it() {
    let dir = temp();
    sample(&dir.path().join("t"));
    at(dir.path(), "$fullbore backup t --to r --quiet").ends_with(0);
    let segment = runs::segments(&dir.path().join("r")).remove(0);
    let mut bytes = fs::read(&segment).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 64].fill(0x55);
    fs::write(&segment, bytes).unwrap();
    for lost in LOST {
        for args in [
            "verify r --data",
            "verify r --data --json",
            "verify r --sample 100%",
        ] {
            assert_eq!(code(dir.path(), lost, args), "4", "{lost}: {args}");
        }
        assert_eq!(
            code(
                dir.path(),
                lost,
                "restore r --to lost --keep-going --overwrite"
            ),
            "4",
            "{lost}"
        );
    }
}

#[test]
fn a_result_that_cannot_be_written_is_warned_of() {
    let dir = temp();
    sample(&dir.path().join("t"));
    for args in [
        "backup t --to r --json",
        "restore r --to to --json",
        "verify r --json",
        "pin r@latest",
    ] {
        let ran = at(dir.path(), &format!("$fullbore {args} > /dev/full")).ends_with(0);
        assert!(
            ran.err.starts_with("warning: ") && ran.err.contains("no space left"),
            "{args}: {}",
            ran.err
        );
    }
}

#[test]
fn a_list_ends_with_its_reader_and_fails_if_it_cannot_be_written() {
    let dir = temp();
    for file in 0..3000 {
        runs::write(
            dir.path().join(format!(
                "t/a-name-that-fills-the-buffer-after-a-while-{file}"
            )),
            "x",
        );
    }
    at(dir.path(), "$fullbore backup t --to r --quiet").ends_with(0);
    let tell = [
        "list r@latest",
        "show r",
        "find r '*name*'",
        "backup t --to r --dry-run",
        "completions bash",
        "man",
    ];
    for args in tell {
        for lost in &LOST[..2] {
            assert_eq!(code(dir.path(), lost, args), "0", "{lost}: {args}");
        }
        let ran = at(dir.path(), &format!("$fullbore {args} > /dev/full"));
        assert!(!ran.err.contains("panicked"), "{args}: {}", ran.err);
        ran.ends_with(1).has_one_error("no space left");
    }
    let first = at(dir.path(), "$fullbore list r@latest | head -n 1").ends_with(0);
    assert_eq!((first.out.lines().count(), &*first.err), (1, ""));
}

#[test]
fn what_is_not_told_is_not_removed() {
    let dir = temp();
    runs::write(dir.path().join("t/f"), "x");
    at(
        dir.path(),
        "$fullbore backup t --to r --quiet && touch t/extra",
    )
    .ends_with(0);
    at(
        dir.path(),
        "$fullbore restore r --to t --delta --delete > /dev/full",
    )
    .ends_with(1)
    .has_one_error("no space left");
    assert!(dir.path().join("t/extra").exists());
    assert_eq!(
        code(dir.path(), LOST[1], "restore r --to t --delta --delete"),
        "0"
    );
    assert!(
        !dir.path().join("t/extra").exists(),
        "a reader who went away has read enough"
    );
}

#[test]
fn a_file_that_may_not_grow_ends_a_run_with_an_error_and_is_not_left() {
    let dir = temp();
    sample(&dir.path().join("t"));
    at(dir.path(), "$fullbore backup t --to r --quiet").ends_with(0);
    let limited = |args: &str| at(dir.path(), &format!("ulimit -f 1000; $fullbore {args}"));
    limited("backup t --to x.tar.zst")
        .ends_with(1)
        .has_one_error("file too large");
    assert_eq!(runs::names(dir.path()), ["r", "t"]);
    let ran = limited("restore r --to to").ends_with(1);
    assert!(ran.err.contains("file too large"), "{}", ran.err);
}
