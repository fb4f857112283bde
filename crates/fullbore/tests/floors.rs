//! The floors that no compiler holds: no two rooms of a crate import each other, nor more than three files, only `platform` is
//! unsafe, and a repository is reached through objects alone; see the architecture. Between crates the compiler holds them.

mod circles;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// A source file.
struct SourceFile {
    path: PathBuf,
    /// Its crate, without `fullbore-`.
    member: String,
    /// The first name of its path below `src`.
    room: String,
    /// Its text without comments.
    text: String,
}

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn sources() -> Vec<SourceFile> {
    let mut dirs = vec![crates()];
    let mut found = Vec::new();
    while let Some(dir) = dirs.pop() {
        for path in fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().path())
        {
            if path.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                found.extend(source_file(path));
            }
        }
    }
    assert!(found.len() > 300);
    found
}

/// Returns a file below `src` of a crate; `None` for a test.
fn source_file(path: PathBuf) -> Option<SourceFile> {
    let names: Vec<_> = path.strip_prefix(crates()).unwrap().iter().collect();
    let names: Vec<_> = names.iter().map(|name| name.to_str().unwrap()).collect();
    if names[1] != "src" {
        return None;
    }
    let is_code = |line: &&str| !line.trim_start().starts_with("//");
    let whole = fs::read_to_string(&path).unwrap();
    let text: Vec<_> = whole.lines().filter(is_code).collect();
    Some(SourceFile {
        member: names[0].to_owned(),
        room: names[2].trim_end_matches(".rs").to_owned(),
        text: text.join("\n"),
        path,
    })
}

/// The rooms that a text names after `crate::`, alone or in braces.
fn imports(text: &str) -> Vec<String> {
    names_after("crate::", text)
}

/// The names that follow a prefix in a text, alone or in braces.
fn names_after(prefix: &str, text: &str) -> Vec<String> {
    let mut names = Vec::new();
    for (offset, _) in text.match_indices(prefix) {
        let (mut depth, mut word, rest) = (0, String::new(), &text[offset + prefix.len()..]);
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

/// The rooms that reach themselves.
fn rooms_in_a_loop(imported: &BTreeMap<String, BTreeSet<String>>) -> Vec<&String> {
    let is_in_a_loop = |room: &&String| reached_from(room, imported).contains(room.as_str());
    imported.keys().filter(is_in_a_loop).collect()
}

#[test]
fn no_two_rooms_of_the_engines_or_of_the_program_import_each_other() {
    for member in ["engine", "fullbore"] {
        let mut imported: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for file in sources().iter().filter(|file| file.member == member) {
            let mut others = imports(&file.text);
            others.retain(|name| *name != file.room);
            let known = imported.entry(file.room.clone()).or_default();
            known.extend(others);
        }
        assert_eq!(rooms_in_a_loop(&imported), [""; 0], "{member}");
    }
    let three = [("a", "b"), ("b", "c"), ("c", "a")].map(|(a, b)| (a.into(), [b.into()].into()));
    assert_eq!(rooms_in_a_loop(&three.into()), ["a", "b", "c"]);
    assert_eq!(
        imports("use crate::{\n a::{b, c},\n d,\n e::f,\n};\nuse crate::g::h;\ncrate::i();"),
        ["a", "d", "e", "g", "i"]
    );
}

#[test]
fn no_two_files_of_a_room_of_trees_import_each_other() {
    for room in ["far", "read", "write"] {
        let mut imported: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        let of_trees = sources().into_iter().filter(|file| file.member == "tree");
        for file in of_trees.filter(|file| file.room == room) {
            let name = file_name(&file.path);
            if name != room {
                let code = file.text.split("#[cfg(test)]").next().unwrap();
                imported.insert(name, names_after("super::", code).into_iter().collect());
            }
        }
        assert!(imported.len() > 5, "{room}: {imported:?}");
        assert_eq!(rooms_in_a_loop(&imported), [""; 0], "{room}");
    }
}

/// The name of a module: that of its file, or of its directory.
fn file_name(path: &Path) -> String {
    let stem = path.file_stem().unwrap();
    let named = match stem.to_str() {
        Some("mod" | "tests") => path.parent().unwrap(),
        _ => Path::new(stem),
    };
    named.file_name().unwrap().to_str().unwrap().to_owned()
}

#[test]
fn only_the_platform_is_unsafe_or_asks_which_system_this_is() {
    let words = ["unsafe ", "cfg(target_os", "io_uring::"];
    let uses = |text: &str| words.into_iter().find(|word| text.contains(word));
    let others = sources()
        .into_iter()
        .filter(|file| file.member != "platform");
    let bad: Vec<_> = others
        .filter_map(|file| Some(format!("{}: {}", file.path.display(), uses(&file.text)?)))
        .collect();
    assert_eq!(bad, [""; 0]);
}

/// What only the crate of storages may do to a repository.
const OF_FILES: [&str; 13] = [
    "std::fs",
    " fs::",
    "fs::File",
    "File::open",
    "File::create",
    "safe_file",
    "flock",
    "lock_exclusive",
    "rename_at",
    "    fs,",
    "MetadataExt",
    "FileExt",
    "OwnedFd",
];

/// Files of the rooms below whose files are not those of a repository.
const MAY_USE_FILES: [&str; 15] = [
    "archive/object.rs",        // archives of one file
    "verify/compare_tree.rs",   // the tree that a backup is compared with
    "verify/tree_roots.rs",     // the same
    "verify/stored_content.rs", // the same
    "verify/stream.rs",         // a stream, or a tar of another program
    "volumes/mod.rs",           // a temporary file without a name, for the manifest
    "volumes/volume_file.rs",   // files of volumes
    "volume_files.rs",          // the same
    "volume_catalog.rs",        // files in the state directory
    "volume_series.rs",         // the same
    "tape_catalog.rs",          // the same
    "root_index.rs",            // files in the cache directory
    "tapes/part.rs",            // parts of tapes, as `SealedFile`
    "tapes/mod.rs",             // a temporary file without a name, for the manifest
    "page_spool.rs",            // a temporary file without a name, in TMPDIR
];

#[test]
fn a_repository_is_read_and_changed_through_objects_alone() {
    let rooms = ["verify", "repair"];
    let mut bad = Vec::new();
    let mut excepted = BTreeSet::new();
    for file in sources() {
        if file.member != "repository" && !rooms.contains(&&file.room[..]) {
            continue;
        }
        let code = file.text.split("#[cfg(test)]").next().unwrap();
        let uses = OF_FILES.into_iter().find(|word| code.contains(word));
        match MAY_USE_FILES.iter().find(|name| file.path.ends_with(name)) {
            Some(name) => drop(uses.map(|_| excepted.insert(*name))),
            None => bad.extend(uses.map(|word| format!("{}: {word}", file.path.display()))),
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
