//! Every PATH that is named is in the backup, or the backup fails; and what is left out is what was meant.

mod told;

use crate::runs;
use crate::runs::{
    FULLBORE, Mount, Ran, args, assert_same, fullbore, has, is_root, or_skip, set_mode, shape,
    shell, temp,
};
use std::{
    ffi::{OsStr, OsString},
    fs,
    os::unix::{
        ffi::{OsStrExt, OsStringExt},
        fs::symlink,
    },
    path::{Path, PathBuf},
};

fn files(dir: &Path, names: &[&str]) {
    names
        .iter()
        .for_each(|name| runs::write(dir.join(name), name));
}

/// A backup of `paths` by these options, into a repository or a file.
fn backup(paths: &[PathBuf], to: &Path, options: &[&str]) -> Ran {
    let paths = paths.iter().map(|path| path.clone().into_os_string());
    fullbore(
        args!["backup", "--to", to]
            .into_iter()
            .chain(args(options))
            .chain(paths),
    )
}

/// The paths in the latest backup of `from`, without those above `base` and with `base` cut off.
fn listed(from: &Path, base: &Path) -> Vec<String> {
    let source = if from.is_dir() {
        format!("{}@latest", from.display())
    } else {
        from.display().to_string()
    };
    let entries = fullbore(args!["list", source, "--json"])
        .ends_with(0)
        .json();
    let paths = entries
        .iter()
        .map(|entry| format!("/{}", entry["path"].as_str().unwrap()));
    let base = format!("{}/", base.display());
    paths
        .filter_map(|path| path.strip_prefix(&base).map(str::to_owned))
        .collect()
}

/// What backups of `paths`, in every order, hold below `base`: the same in a repository and in one file.
fn stored_in_any_order(base: &Path, paths: &[&str], options: &[&str]) -> Vec<String> {
    let dir = temp();
    let mut found: Option<Vec<String>> = None;
    for turn in 0..paths.len() {
        let mut paths: Vec<PathBuf> = paths.iter().map(|path| base.join(path)).collect();
        paths.rotate_left(turn);
        for ending in ["r", ".tar.zst"] {
            let target = dir.path().join(format!("{turn}{ending}"));
            let dry = backup(
                &paths,
                &target,
                &[options, &["--dry-run", "--json"]].concat(),
            )
            .ends_with(0);
            let made = backup(&paths, &target, &[options, &["--json"]].concat()).ends_with(0);
            assert_eq!(
                dry.json()[0]["entries"],
                made.json().pop().unwrap()["entries"],
                "{paths:?}"
            );
            let names = listed(&target, base);
            assert_eq!(
                found.get_or_insert(names.clone()),
                &names,
                "{paths:?} into {ending}"
            );
            fullbore(args!["verify", target, "--data"]).ends_with(0);
        }
    }
    found.unwrap()
}

#[test]
fn a_path_below_another_is_stored_though_a_pattern_matches_what_is_above_it() {
    let dir = temp();
    let base = dir.path().join("t");
    files(
        &base,
        &[
            "a/cache/keep/deep/f",
            "a/cache/keep/g",
            "a/cache/other",
            "a/cache/one",
            "a/z",
            "a/keep.o",
            "a/x.o",
        ],
    );
    let paths = ["a", "a/cache/keep", "a/cache/one", "a/keep.o"];
    let stored = stored_in_any_order(
        &base,
        &paths,
        &["--full-paths", "--exclude", "cache", "--exclude", "*.o"],
    );
    let way = [
        "a",
        "a/cache",
        "a/cache/keep",
        "a/cache/keep/deep",
        "a/cache/keep/deep/f",
        "a/cache/keep/g",
    ];
    assert_eq!(
        stored,
        [&way[..], &["a/cache/one", "a/keep.o", "a/z"]].concat()
    );
    // Patterns hold in a PATH, as in any other.
    let stored = stored_in_any_order(
        &base,
        &paths[..2],
        &["--full-paths", "--exclude", "cache", "--exclude", "deep"],
    );
    assert_eq!(
        stored,
        [&way[..3], &["a/cache/keep/g", "a/keep.o", "a/x.o", "a/z"]].concat()
    );
}

#[test]
fn a_path_below_another_is_stored_once_where_a_walk_comes_to_it_anyway() {
    let dir = temp();
    let base = dir.path().join("t");
    files(&base, &["a/b/c/d", "a/b/e", "a/f"]);
    let all = ["a", "a/b", "a/b/c", "a/b/c/d", "a/b/e", "a/f"];
    assert_eq!(
        stored_in_any_order(&base, &["a", "a/b/c", "a/b/e", "a/b"], &["--full-paths"]),
        all
    );
}

#[test]
fn a_path_below_another_is_stored_though_a_directory_above_it_is_marked() {
    let dir = temp();
    let base = dir.path().join("t");
    files(
        &base,
        &[
            "a/m/.nobackup",
            "a/m/k/in",
            "a/m/other",
            "a/c/k/in",
            "a/c/other",
            "a/z",
        ],
    );
    runs::write(
        base.join("a/c/CACHEDIR.TAG"),
        "Signature: 8a477f597d28d172789f06886806bc55",
    );
    let options = [
        "--full-paths",
        "--exclude-caches",
        "--exclude-if-present",
        ".nobackup",
    ];
    let stored = stored_in_any_order(&base, &["a", "a/m/k", "a/c/k"], &options);
    assert_eq!(
        stored,
        [
            "a",
            "a/c",
            "a/c/CACHEDIR.TAG",
            "a/c/k",
            "a/c/k/in",
            "a/m",
            "a/m/k",
            "a/m/k/in",
            "a/z"
        ]
    );
}

#[test]
fn a_path_below_another_is_stored_though_it_is_on_another_file_system() {
    let dir = temp();
    let base = dir.path().join("t");
    files(&base, &["a/home/covered", "a/z"]);
    let Some(_home) = Mount::tmpfs(&base.join("a/home"), "8m") else {
        return;
    };
    files(&base, &["a/home/in", "a/home/deep/er/f", "a/home/deep/g"]);
    let Some(_inner) = Mount::tmpfs(&base.join("a/home/deep/er/m"), "8m") else {
        return;
    };
    files(&base, &["a/home/deep/er/m/h"]);
    let options = ["--full-paths", "-x"];
    let home = [
        "a/home/deep",
        "a/home/deep/er",
        "a/home/deep/er/f",
        "a/home/deep/er/m",
        "a/home/deep/g",
        "a/home/in",
    ];
    let all = [&["a", "a/home"], &home[..], &["a/z"]].concat();
    assert_eq!(stored_in_any_order(&base, &["a", "a/home"], &options), all);
    let way = [
        "a",
        "a/home",
        "a/home/deep",
        "a/home/deep/er",
        "a/home/deep/er/f",
        "a/home/deep/er/m",
    ];
    assert_eq!(
        stored_in_any_order(&base, &["a", "a/home/deep/er"], &options),
        [&way[..], &["a/z"]].concat()
    );
    let deepest = [
        &way[..4],
        &["a/home/deep/er/m", "a/home/deep/er/m/h", "a/z"],
    ]
    .concat();
    assert_eq!(
        stored_in_any_order(&base, &["a", "a/home/deep/er/m"], &options),
        deepest
    );
    // Without -x it is one of several streams.
    let below = |path: &Vec<u8>| {
        format!("a/{}", String::from_utf8_lossy(path))
            .trim_end_matches('/')
            .to_owned()
    };
    let all = sorted(shape(&base.join("a")).keys().map(below).collect());
    assert_eq!(
        sorted(stored_in_any_order(
            &base,
            &["a", "a/home", "a/home/deep/er/m"],
            &["--full-paths"]
        )),
        all
    );
    let options = ["--full-paths", "--exclude", "home"];
    let named = [
        "a",
        "a/home",
        "a/home/deep",
        "a/home/deep/er",
        "a/home/deep/er/m",
        "a/home/deep/er/m/h",
        "a/z",
    ];
    assert_eq!(
        sorted(stored_in_any_order(
            &base,
            &["a", "a/home/deep/er/m"],
            &options
        )),
        named
    );
}

/// Streams are listed one after the other.
fn sorted(mut names: Vec<String>) -> Vec<String> {
    names.sort_by(|a, b| a.split('/').cmp(b.split('/')));
    names
}

#[test]
fn a_path_below_another_is_stored_though_that_may_be_entered_but_not_listed() {
    if !or_skip(is_root() && has("setpriv"), "not root, or no setpriv") {
        return;
    }
    let dir = temp();
    set_mode(dir.path(), 0o755);
    let base = dir.path().join("t");
    files(&base, &["a/in/f", "a/other", "a/in/sub/g"]);
    set_mode(&base.join("a"), 0o711);
    set_mode(&base.join("a/in"), 0o711);
    let target = dir.path().join("to");
    fs::create_dir(&target).unwrap();
    set_mode(&target, 0o777);
    let line = "exec setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=-all \"$@\"";
    for (index, paths) in [["a", "a/in/sub"], ["a/in/sub", "a"]].iter().enumerate() {
        for name in ["r", "x.tar.zst"] {
            let target = target.join(format!("{index}{name}"));
            let paths = paths.iter().map(|path| base.join(path).into_os_string());
            let options = args![FULLBORE, "backup", "--full-paths", "--to", target].into_iter();
            let ran = shell(line, options.chain(paths)).ends_with(3);
            assert_eq!(ran.err.matches("not captured").count(), 1, "{}", ran.err);
            assert!(ran.err.contains("/t/a\": permission denied"), "{}", ran.err);
            assert_eq!(
                listed(&target, &base),
                ["a", "a/in", "a/in/sub", "a/in/sub/g"]
            );
        }
    }
}

#[test]
fn a_path_below_another_is_stored_though_a_link_leads_to_it() {
    let dir = temp();
    let base = dir.path().join("t");
    files(
        &base,
        &["a/releases/42/conf/f", "a/releases/42/g", "a/z", "away/h"],
    );
    symlink("releases/42", base.join("a/current")).unwrap();
    symlink("../away", base.join("a/to")).unwrap();
    let releases = [
        "a/releases",
        "a/releases/42",
        "a/releases/42/conf",
        "a/releases/42/conf/f",
        "a/releases/42/g",
    ];
    // The directories above it are those where it is; that one is met anyway, or not.
    let all = [&["a", "a/current"], &releases[..], &["a/to", "a/z"]].concat();
    assert_eq!(
        stored_in_any_order(&base, &["a", "a/current/conf"], &["--full-paths"]),
        all
    );
    let some = [&["a", "a/current"], &releases[..4], &["a/to", "a/z"]].concat();
    let options = ["--full-paths", "--exclude", "42"];
    assert_eq!(
        stored_in_any_order(&base, &["a", "a/current/conf"], &options),
        some
    );
    let way = [
        "a",
        "a/current",
        "a/current/conf",
        "a/current/conf/f",
        "a/current/g",
    ];
    let whole = [&way[..], &releases, &["a/to", "a/z"]].concat();
    assert_eq!(
        stored_in_any_order(&base, &["a", "a/current"], &["--full-paths"]),
        whole
    );
    let away = [
        &["a", "a/current"],
        &releases[..],
        &["a/to", "a/to/h", "a/z"],
    ]
    .concat();
    assert_eq!(
        stored_in_any_order(&base, &["a", "a/to"], &["--full-paths"]),
        away
    );
    let paths = [base.join("a"), base.join("a/current")];
    let ran = backup(&paths, &dir.path().join("r"), &["--full-paths"]).ends_with(0);
    let said = format!(
        "warning: {:?} is a link and is stored as the directory that it points to",
        base.join("a/current")
    );
    assert_eq!(ran.err.matches("warning: ").count(), 1, "{}", ran.err);
    assert!(ran.err.contains(&said), "{}", ran.err);
    let back = dir.path().join("b");
    fullbore(args![
        "restore",
        dir.path().join("r"),
        "--to",
        back,
        "--quiet"
    ])
    .ends_with(0);
    let back = back.join(base.strip_prefix("/").unwrap());
    assert_same(
        &shape(&base.join("a/releases")),
        &shape(&back.join("a/releases")),
        "what the link leads to",
    );
    assert_same(
        &shape(&base.join("a/releases/42")),
        &shape(&back.join("a/current")),
        "by the link",
    );
}

#[test]
fn a_restore_in_place_keeps_a_link_above_a_whole_path() {
    let dir = temp();
    let base = dir.path().canonicalize().unwrap().join("t");
    files(&base, &["data/home/alice/f", "data/home/bob/g"]);
    symlink("data/home", base.join("home")).unwrap();
    let target = dir.path().join("r");
    backup(
        &[base.join("home/alice")],
        &target,
        &["--full-paths", "--quiet"],
    )
    .ends_with(0);
    let before = shape(&base.join("data"));
    fs::write(base.join("data/home/alice/f"), "wrong").unwrap();
    runs::set_mtime(&base.join("data/home/alice"), 1_000_000_000, 0);
    let below = base.strip_prefix("/").unwrap();
    fullbore(args![
        "restore",
        target,
        "--to",
        "/",
        below,
        "--overwrite=all",
        "--quiet"
    ])
    .ends_with(0);
    assert_eq!(
        fs::read(base.join("home/alice/f")).unwrap(),
        b"data/home/alice/f"
    );
    assert_same(&before, &shape(&base.join("data")), "in place");
    assert!(base.join("home").is_symlink());
}

#[test]
fn a_path_in_a_pseudo_file_system_is_stored_beside_the_root_of_the_tree() {
    let dir = temp();
    let base = dir.path().join("t");
    files(&base, &["a/z"]);
    fs::create_dir(base.join("a/proc")).unwrap();
    let mounted =
        is_root() && shell("mount -t proc proc \"$1\"", args![base.join("a/proc")]).code == 0;
    if !or_skip(mounted, "no proc can be mounted here") {
        return;
    }
    let _proc = Mount::at(&base.join("a/proc"));
    // Its files have no size, so they are named as not captured, as if they were backed up alone.
    let paths = ["a", "a/proc/sys/kernel/random", "a/proc/version"].map(|path| base.join(path));
    for target in ["r", "x.tar.zst"].map(|name| dir.path().join(name)) {
        let ran = backup(&paths, &target, &["--full-paths"]).ends_with(3);
        for path in ["a/proc/sys/kernel/random/boot_id", "a/proc/version"] {
            assert!(
                ran.err.contains(&format!("{path}\": its size")),
                "{path}: {}",
                ran.err
            );
        }
        let mut names = listed(&target, &base);
        names.retain(|name| !name.starts_with("a/proc/sys/kernel/random/"));
        let way = [
            "a",
            "a/proc",
            "a/proc/sys",
            "a/proc/sys/kernel",
            "a/proc/sys/kernel/random",
            "a/proc/version",
            "a/z",
        ];
        assert_eq!(names, way);
    }
}

#[test]
fn an_incremental_backup_of_paths_in_one_another_finds_what_is_the_same() {
    let dir = temp();
    let base = dir.path().join("t");
    files(&base, &["a/cache/keep/f", "a/cache/other", "a/z"]);
    fs::hard_link(base.join("a/z"), base.join("a/cache/keep/z")).unwrap();
    let (target, back) = (dir.path().join("r"), dir.path().join("b"));
    let paths = [base.join("a/cache/keep"), base.join("a")];
    let options = ["--full-paths", "--exclude", "cache", "--json"];
    backup(&paths, &target, &options).ends_with(0);
    let second = backup(&paths, &target, &options)
        .ends_with(0)
        .json()
        .pop()
        .unwrap();
    assert_eq!(
        (&second["kept_files"], &second["files"]),
        (&2.into(), &2.into()),
        "{second}"
    );
    fullbore(args!["restore", target, "--to", back, "--quiet"]).ends_with(0);
    let back = back.join(base.strip_prefix("/").unwrap()).join("a");
    assert_same(
        &shape(&base.join("a/cache/keep")),
        &shape(&back.join("cache/keep")),
        "below what was left out",
    );
    assert!(!back.join("cache/other").exists() && back.join("z").exists());
}
