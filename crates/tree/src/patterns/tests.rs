use super::*;
use std::{
    io::Write,
    process::{Command, Stdio},
};

const NO_FILES: [&str; 0] = [];

fn of(lines: &[impl AsRef<[u8]>]) -> Patterns {
    Patterns::read(lines, &NO_FILES, &[]).unwrap()
}

#[test]
fn the_last_matching_pattern_decides_wherever_it_stands() {
    let patterns = of(&[
        "*.log", "keep", "/a/b", "!x.log", "!keep", "keep/", "c/*", "!/c/d", "dir/",
    ]);
    let said = |path: &str, is_dir| patterns.matches(path.as_bytes(), is_dir);
    let taken = ["y.log", "q/y.log", "a/b", "c/e"].map(|path| said(path, false));
    let left =
        ["x.log", "q/x.log", "keep", "q/a/b", "c/d", "dir", "q/dir"].map(|path| said(path, false));
    assert_eq!((taken, left), ([true; 4], [false; 7]));
    assert!(said("keep", true) && said("q/dir", true) && !said("q", true));
    assert!(!of(&["# nothing", "", "  ", "!", "!a"]).can_match());
}

#[test]
fn names_of_any_bytes_can_be_written_into_a_file() {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(
        &file,
        b"\xef\xbb\xbf# of 1998\r\n/caf\xe9\r\n[\xe0-\xe9]?\n",
    )
    .unwrap();
    let patterns = Patterns::read(&NO_FILES, &[file.path()], &[]).unwrap();
    assert!(patterns.matches(b"caf\xe9", false) && patterns.matches(b"a/\xe1x", false));
    assert!(!patterns.matches(b"a/caf\xe9", false) && !patterns.matches(b"# of 1998", false));
    assert!(Patterns::read(&NO_FILES, &["/is/not/there"], &[]).is_err());
    let patterns = Patterns::read(&["!/a/?x"], &[file.path(), file.path()], &[]).unwrap();
    assert!(!patterns.matches(b"a/\xe1x", false) && patterns.matches(b"b/\xe1x", false));
}

fn unmatched(patterns: &Patterns) -> Vec<String> {
    patterns
        .unmatched()
        .map(|line| String::from_utf8_lossy(line).into_owned())
        .collect()
}

#[test]
fn patterns_without_a_match_are_reported() {
    let patterns = of(&["*.log", "/a/b/", "!keep", "x", "*.log"]);
    assert!(patterns.matches(b"q/y.log", false) && !patterns.matches(b"a/b", false));
    // Both of two equal patterns have matched.
    assert_eq!(unmatched(&patterns), ["/a/b/", "!keep", "x"]);
    assert!(patterns.matches(b"a/b", true) && !patterns.matches(b"keep", false));
    assert_eq!(unmatched(&patterns), ["x"]);
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, "\u{feff}*.o\r\n\n# c\n/b\n").unwrap();
    assert_eq!(
        unmatched(&Patterns::read(&NO_FILES, &[file.path()], &[]).unwrap()),
        ["*.o", "/b"]
    );
}

#[test]
fn a_pattern_that_takes_nothing_back_is_known() {
    let idle = |lines: &[&str]| of(lines).idle_negations().len();
    assert_eq!(idle(&["/d/", "!/d/keep"]), 1);
    assert_eq!(idle(&["d", "!/a/d/b/*.c"]), 1);
    assert_eq!(idle(&["/d/*", "!/d/keep"]), 0);
    assert_eq!(idle(&["/d/*", "!/d/e/keep"]), 1);
    assert_eq!(idle(&["/d/*", "!/d/e/", "!/d/e/keep"]), 0);
    assert_eq!(idle(&["*.log", "!keep.log", "!/*/x"]), 0);
    let patterns = of(&["/d/", "!/d/keep"]);
    assert_eq!(patterns.idle_negations(), [(&b"!/d/keep"[..], &b"/d/"[..])]);
    assert_eq!(unmatched(&patterns), ["/d/", "!/d/keep"]);
}

#[test]
fn an_absolute_pattern_below_a_place_is_relative_to_it() {
    let place = |names: &[&str], anchor: &str| PatternPlace {
        names: names.iter().map(|name| (*name).into()).collect(),
        at: anchor.into(),
    };
    let places = [
        place(&["srv/data", "mnt/7"], "data"),
        place(&["srv/w[w]"], "w[w]"),
        place(&["srv"], "srv"),
    ];
    let says = |line: &str, path: &str| {
        let patterns = Patterns::read(&[line], &NO_FILES, &places).unwrap();
        patterns.matches(path.as_bytes(), true)
    };
    assert!(says("/srv/data/cache", "data/cache") && says("/mnt/7/cache/", "data/cache"));
    assert!(says("/srv/data/cache", "srv/data/cache") && !says("/srv/data/cache", "cache"));
    assert!(says("/srv//data//*/x", "data/a/x") && !says("/srv/data/*/x", "data/x"));
    // Names of places are literal.
    assert!(
        says("/srv/w[w]/a", "w[w]/a")
            && says("/srv/w\\[w\\]/a", "w[w]/a")
            && !says("/srv/w[w]/a", "ww/a")
    );
    assert!(says("/srv/*/cache", "srv/x/cache") && !says("/srv/*/cache", "data/cache"));
    // A pattern for a directory above a place, or without a leading `/`, stays as it is.
    assert!(says("/data", "data") && says("/mnt/7", "mnt/7") && says("srv/data/x", "srv/data/x"));
    assert!(!says("srv/data/x", "data/x") && !says("/mnt/70/x", "data/0/x"));
    let patterns = Patterns::read(&["*.o", "!/srv/data/keep.o"], &NO_FILES, &places).unwrap();
    assert!(!patterns.matches(b"data/keep.o", false) && patterns.matches(b"srv/keep.o", false));
    let all = [place(&[""], "")];
    assert!(
        Patterns::read(&["/etc/*.d"], &NO_FILES, &all)
            .unwrap()
            .matches(b"etc/a.d", true)
    );
}

/// Joins up to `most` randomly chosen parts.
fn draw(seed: &mut u64, parts: &[&str], most: usize, between: &str) -> String {
    let mut next = || {
        *seed ^= *seed << 13;
        *seed ^= *seed >> 7;
        *seed ^= *seed << 17;
        *seed as usize
    };
    (0..1 + next() % most)
        .map(|_| parts[next() % parts.len()])
        .collect::<Vec<_>>()
        .join(between)
}

fn git(dir: &Path, arguments: &[&str]) -> Command {
    let mut git = Command::new("git");
    git.args(arguments)
        .current_dir(dir)
        .env("HOME", dir)
        .env("GIT_CONFIG_NOSYSTEM", "1");
    git
}

/// Asks git which of `paths` it ignores, and by which pattern.
fn git_ignores(dir: &Path, lines: &[String], paths: &[String]) -> Vec<(bool, String)> {
    fs::write(dir.join(".gitignore"), lines.join("\n") + "\n").unwrap();
    let mut git = git(
        dir,
        &["check-ignore", "--no-index", "--stdin", "-z", "-v", "-n"],
    );
    let mut asked = git
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    asked
        .stdin
        .take()
        .unwrap()
        .write_all((paths.join("\0") + "\0").as_bytes())
        .unwrap();
    let said = String::from_utf8(asked.wait_with_output().unwrap().stdout).unwrap();
    let fields: Vec<&str> = said.split_terminator('\0').collect();
    assert_eq!(fields.len(), 4 * paths.len(), "{said:?}");
    let answer = |given: &[&str]| {
        (
            !given[2].is_empty() && !given[2].starts_with('!'),
            given[2].to_owned(),
        )
    };
    fields.chunks_exact(4).map(answer).collect()
}

#[test]
fn patterns_match_the_same_paths_as_in_git() {
    const OF_PATTERNS: [&str; 21] = [
        "a",
        "b",
        "ab",
        "/",
        "*",
        "**",
        "?",
        "[ab]",
        "[!a]",
        "[^b]",
        "[[:alpha:]]",
        "[a-b]",
        "\\",
        "{a,b}",
        "{",
        "}",
        "]",
        "!",
        " ",
        "**/",
        "/**",
    ];
    const OF_NAMES: [&str; 10] = ["a", "b", "ab", "ba", "{", "}", "]", "a,b", "\\", "{a}"];
    let dir = tempfile::tempdir().unwrap();
    match git(dir.path(), &["init", "-q"]).status() {
        Err(_) => return eprintln!("skipped: there is no git"),
        Ok(status) => assert!(status.success()),
    }
    let mut seed = 0x9e37_79b9_7f4a_7c15;
    let mut taken = 0;
    for _ in 0..80 {
        // git cuts off the text before the first wildcard, and then reads the stars in `a**/b`
        // like those in `**/b`.
        let has_overlay = |line: &String| {
            line.match_indices("**")
                .all(|(index, _)| index == 0 || line[..index].ends_with('/'))
        };
        let mut lines: Vec<_> = (0..4)
            .map(|_| draw(&mut seed, &OF_PATTERNS, 5, ""))
            .collect();
        lines.retain(has_overlay);
        let paths: Vec<_> = (0..80)
            .map(|_| draw(&mut seed, &OF_NAMES, 3, "/"))
            .collect();
        let patterns = of(&lines);
        for (path, (wanted, source_line)) in
            paths.iter().zip(git_ignores(dir.path(), &lines, &paths))
        {
            // A walk never reaches the contents of an excluded directory.
            let above = path
                .match_indices('/')
                .any(|(offset, _)| patterns.matches(&path.as_bytes()[..offset], true));
            let found = above || patterns.matches(path.as_bytes(), false);
            assert_eq!(found, wanted, "{path:?} by {lines:?}; git: {source_line:?}");
            taken += usize::from(found);
        }
    }
    assert!(taken > 500, "{taken}");
}
