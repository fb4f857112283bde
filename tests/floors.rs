//! A lower floor never imports a higher one, no two rooms import each other, and only `platform` is unsafe; see the
//! architecture.

#![allow(missing_docs)]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

const FLOORS: [(&str, u32); 29] = [
    ("error", 0),
    ("platform", 1),
    ("format", 1),
    ("queue", 1),
    ("text", 1),
    ("crypt", 2),
    ("frame", 2),
    ("known", 2),
    ("metrics", 2),
    ("source", 3),
    ("archive", 3),
    ("tar", 3),
    ("stage", 3),
    ("sink", 3),
    ("target", 3),
    ("storage", 3),
    ("pipeline", 4),
    ("postgres", 4),
    ("repo", 4),
    ("report", 4),
    ("plan", 5),
    ("backup", 6),
    ("copy", 6),
    ("restore", 6),
    ("verify", 6),
    ("repair", 6),
    ("command", 7),
    ("cli", 8),
    ("lib", 9),
];

fn rank(module: &str) -> u32 {
    FLOORS
        .iter()
        .find(|(name, _)| *name == module)
        .unwrap_or_else(|| panic!("{module} has no floor"))
        .1
}

/// Every source file, its top module and its text without comments.
fn sources() -> Vec<(PathBuf, String, String)> {
    let (src, mut dirs, mut found) = (
        Path::new(env!("CARGO_MANIFEST_DIR")).join("src"),
        Vec::new(),
        Vec::new(),
    );
    dirs.push(src.clone());
    while let Some(dir) = dirs.pop() {
        for path in fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().path())
        {
            if path.is_dir() {
                dirs.push(path);
                continue;
            }
            let top = path
                .strip_prefix(&src)
                .unwrap()
                .iter()
                .next()
                .unwrap()
                .to_str()
                .unwrap()
                .to_owned();
            let code = |line: &&str| !line.trim_start().starts_with("//");
            let text = fs::read_to_string(&path)
                .unwrap()
                .lines()
                .filter(code)
                .collect::<Vec<_>>()
                .join("\n");
            found.push((path, top.trim_end_matches(".rs").to_owned(), text));
        }
    }
    found
}

/// The top modules that a text names after `crate::`, alone or in braces.
fn imports(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    for (at, _) in text.match_indices("crate::") {
        let (mut depth, mut word, rest) = (0, String::new(), &text[at + 7..]);
        let mut wanted = true;
        for c in rest.chars() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                c if (c.is_alphanumeric() || c == '_') && wanted && depth <= 1 => word.push(c),
                _ => {}
            }
            if !(c.is_alphanumeric() || c == '_' || word.is_empty()) {
                names.push(std::mem::take(&mut word));
                wanted = false;
            }
            if depth == 1 && c == ',' {
                wanted = true;
            }
            if depth <= 0 && (c == '}' || !wanted) {
                break;
            }
        }
    }
    names
}

#[test]
fn no_floor_knows_a_higher_one() {
    let mut bad = Vec::new();
    for (path, top, text) in sources().iter().filter(|(_, top, _)| top != "main") {
        let above = imports(text)
            .into_iter()
            .filter(|name| name.starts_with(char::is_lowercase) && rank(name) > rank(top));
        bad.extend(above.map(|name| format!("{}: {top} knows {name}", path.display())));
    }
    assert_eq!(bad, [""; 0]);
    assert_eq!(
        imports("use crate::{\n a::{b, c},\n d,\n e::f,\n};\nuse crate::g::h;\ncrate::i();"),
        ["a", "d", "e", "g", "i"]
    );
}

/// The rooms that `room` imports, directly or through others.
fn reached_from<'a>(
    room: &str,
    imported: &'a BTreeMap<String, BTreeSet<String>>,
) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut waiting = vec![room];
    while let Some(room) = waiting.pop() {
        for next in imported.get(room).into_iter().flatten() {
            if reached.insert(next.as_str()) {
                waiting.push(next);
            }
        }
    }
    reached
}

#[test]
fn no_two_rooms_import_each_other() {
    let mut imported: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (_, room, text) in sources() {
        let mut others = imports(&text);
        others.retain(|name| *name != room);
        imported.entry(room).or_default().extend(others);
    }
    let is_in_a_loop = |room: &&String| reached_from(room, &imported).contains(room.as_str());
    let loops: Vec<_> = imported.keys().filter(is_in_a_loop).collect();
    assert_eq!(loops, [""; 0]);
    let two = [("a", "b"), ("b", "c"), ("c", "a")].map(|(a, b)| (a.into(), [b.into()].into()));
    assert!(reached_from("a", &two.into()).contains("a"));
}

#[test]
fn only_the_platform_is_unsafe_or_asks_which_system_this_is() {
    let words = ["unsafe ", "cfg(target_os", "io_uring::"];
    let uses = |text: &str| words.into_iter().find(|word| text.contains(word));
    let bad = sources()
        .into_iter()
        .filter(|(_, top, _)| top != "platform");
    let bad: Vec<_> = bad
        .filter_map(|(path, _, text)| Some(format!("{}: {}", path.display(), uses(&text)?)))
        .collect();
    assert_eq!(bad, [""; 0]);
}

/// What only the room of storages may do to a repository.
const OF_FILES: [&str; 12] = [
    "std::fs",
    "fs::File",
    "File::open",
    "File::create",
    "safe_file",
    "flock",
    "lock_exclusive",
    "rename_at",
    "fs::rename",
    "MetadataExt",
    "FileExt",
    "OwnedFd",
];

/// Files of the rooms below whose files are not those of a repository.
const MAY_USE_FILES: [&str; 6] = [
    "archive/object.rs",        // archives of one file
    "verify/compare_tree.rs",   // the tree that a backup is compared with
    "verify/tree_roots.rs",     // the same
    "verify/stored_content.rs", // the same
    "verify/stream.rs",         // a stream, or a tar of another program
    "repo/page_spool.rs",       // a temporary file without a name, in TMPDIR
];

#[test]
fn a_repository_is_read_and_changed_through_objects_alone() {
    let rooms = ["repo", "archive", "verify", "repair"];
    let mut bad = Vec::new();
    let mut excepted = BTreeSet::new();
    for (path, room, text) in sources() {
        if !rooms.contains(&&room[..]) {
            continue;
        }
        let code = text.split("#[cfg(test)]").next().unwrap();
        let uses = OF_FILES.into_iter().find(|word| code.contains(word));
        match MAY_USE_FILES.iter().find(|name| path.ends_with(name)) {
            Some(name) => drop(uses.map(|_| excepted.insert(*name))),
            None => bad.extend(uses.map(|word| format!("{}: {word}", path.display()))),
        }
    }
    assert_eq!(bad, [""; 0]);
    // The words find something, and no exception is left of a file that is gone or changed.
    let allowed = BTreeSet::from(MAY_USE_FILES);
    assert_eq!(excepted, allowed);
}

/// Cargo does not look for test programs, as each costs a link: a file that no program names would never run.
#[test]
fn every_file_of_tests_is_in_a_program() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let manifest = fs::read_to_string(here.join("Cargo.toml")).unwrap();
    let programs = manifest.split("[[test]]\nname = \"").skip(1);
    let mut named = BTreeSet::new();
    for program in programs.map(|rest| rest.split('"').next().unwrap()) {
        let text = fs::read_to_string(here.join(format!("tests/{program}.rs"))).unwrap_or_default();
        let modules = text.lines().filter_map(|line| line.strip_prefix("mod "));
        named.extend(modules.map(|rest| rest.trim_end_matches(';').to_owned()));
        named.insert(program.to_owned());
    }
    let files = fs::read_dir(here.join("tests")).unwrap();
    let found: BTreeSet<_> = files
        .map(|file| file.unwrap().path())
        .filter(|path| path.is_file() || fs::read_dir(path).unwrap().next().is_some())
        .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    assert_eq!(found, named);
}
