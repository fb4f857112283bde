//! What is restored is within nobody's reach meanwhile who may not have it in the end.

use crate::runs::{
    self, assert_same, fullbore, has, is_root, make_fifo, noise, or_skip, set_mode, set_xattr,
    shape, shell, temp, write,
};
use std::{
    ffi::OsString,
    fs::{self, File},
    io::Read,
    os::unix::fs::{MetadataExt, chown},
    path::Path,
};

/// Users and groups that nobody has.
const OTHER: u32 = 12_345;
const ANOTHER: u32 = 22_222;

const LIST: &str = "system.posix_acl_access";

/// An access list of version 2 that lets the other read, if the mask does.
fn list() -> Vec<u8> {
    let entries = [
        (1u16, 6u16, u32::MAX),
        (2, 4, OTHER),
        (4, 4, u32::MAX),
        (16, 4, u32::MAX),
        (32, 0, u32::MAX),
    ];
    let bytes = entries.iter().flat_map(|(tag, may, id)| {
        [
            &tag.to_le_bytes()[..],
            &may.to_le_bytes(),
            &id.to_le_bytes(),
        ]
        .concat()
    });
    [2, 0, 0, 0].into_iter().chain(bytes).collect()
}

fn delta(repo: &Path, to: &Path) -> serde_json::Value {
    let ran = fullbore(args!["restore", repo, "--to", to, "--delta", "--json"]).ends_with(0);
    ran.json().pop().unwrap()["changes"].clone()
}

#[test]
fn a_file_that_somebody_may_have_open_who_may_not_by_the_backup_is_made_anew() {
    if !or_skip(is_root(), "only root sees owners") {
        return;
    }
    let dir = temp();
    let (tree, repo, target) = (
        dir.path().join("t"),
        dir.path().join("r"),
        dir.path().join("to"),
    );
    // One is compared as a whole and the other block by block.
    let files = [("small", 3000), ("large", 5 << 20)];
    files.iter().for_each(|(name, len)| {
        write(tree.join(name), noise(*len as u64, *len));
        set_mode(&tree.join(name), 0o640);
    });
    fullbore(args!["backup", tree, "--to", repo, "-q"]).ends_with(0);
    fullbore(args!["restore", repo, "--to", target, "-q"]).ends_with(0);
    let change = |how: &str, file: &Path| match how {
        "owner" => chown(file, Some(OTHER), None).unwrap(),
        "group" => chown(file, None, Some(OTHER)).unwrap(),
        "mode" => set_mode(file, 0o644),
        "list" => assert!(set_xattr(file, LIST, &list())),
        "narrow" => set_mode(file, 0o600),
        _ => {}
    };
    for how in ["owner", "group", "mode", "list", "narrow", ""] {
        for differs in [true, false] {
            let held: Vec<File> = files
                .map(|(name, _)| File::open(target.join(name)).unwrap())
                .into();
            for (name, len) in files {
                let file = target.join(name);
                if differs {
                    write(&file, vec![0; len]);
                }
                change(how, &file);
            }
            let changes = delta(&repo, &target);
            assert_same(&shape(&tree), &shape(&target), how);
            let stays = ["narrow", ""].contains(&how);
            let kept = files.iter().zip(&held).filter(|((name, _), held)| {
                held.metadata().unwrap().ino() == fs::metadata(target.join(name)).unwrap().ino()
            });
            // The small one is replaced if it differs, whoever has it.
            assert_eq!(
                kept.count(),
                usize::from(stays) + usize::from(stays && !differs),
                "{how} {changes}"
            );
            for mut held in held.into_iter().filter(|_| !stays && differs) {
                let mut content = Vec::new();
                held.read_to_end(&mut content).unwrap();
                assert!(content.iter().all(|byte| *byte == 0), "{how}");
            }
        }
    }
    assert_eq!(delta(&repo, &target)["written_bytes"], 0);
}

#[test]
fn who_may_set_no_owner_writes_nothing_where_nothing_differs() {
    if !or_skip(is_root(), "only root can be another") {
        return;
    }
    let dir = temp();
    let (tree, repo, target) = (
        dir.path().join("t"),
        dir.path().join("r"),
        dir.path().join("open/to"),
    );
    for (index, mode) in [0o600, 0o640, 0o664, 0o666, 0o644].into_iter().enumerate() {
        let file = tree.join(format!("f{index}"));
        write(&file, noise(index as u64, 3000 + index * (1 << 20)));
        set_mode(&file, mode);
        chown(&file, Some(OTHER), Some(ANOTHER)).unwrap();
    }
    assert!(set_xattr(&tree.join("f1"), LIST, &list()));
    fullbore(args!["backup", tree, "--to", repo, "-q"]).ends_with(0);
    fs::create_dir(dir.path().join("open")).unwrap();
    set_mode(&dir.path().join("open"), 0o777);
    set_mode(dir.path(), 0o755);
    shell("chmod -R a+rX \"$1\"", args![repo]).ends_with(0);
    let nobody = |more: &[&str]| {
        let all = [OsString::from(runs::FULLBORE)]
            .into_iter()
            .chain(args!["restore", repo, "--to", target, "--json"]);
        let all = all.chain(more.iter().map(OsString::from));
        shell(
            "exec setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=-all \"$@\"",
            all,
        )
        .ends_with(0)
    };
    nobody(&[]);
    let inodes = || {
        runs::names(&target)
            .iter()
            .map(|name| fs::metadata(target.join(name)).unwrap().ino())
            .collect::<Vec<_>>()
    };
    let before = inodes();
    let changes = nobody(&["--delta"]).json().pop().unwrap()["changes"].clone();
    assert_eq!(
        (&changes["changed"], &changes["written_bytes"]),
        (&0.into(), &0.into())
    );
    assert_eq!((inodes(), runs::names(&target).len()), (before, 5));
}

#[test]
fn nobody_can_open_a_new_file_before_it_has_its_owner_mode_and_list() {
    if !or_skip(
        is_root() && has("strace"),
        "only root sees owners, and there is no strace",
    ) {
        return;
    }
    let dir = temp();
    let (tree, repo) = (dir.path().join("t"), dir.path().join("r"));
    for (name, mode) in [("d/all", 0o644), ("d/group", 0o640), ("d/listed", 0o740)] {
        write(tree.join(name), name);
        if name == "d/listed" {
            assert!(set_xattr(&tree.join(name), LIST, &list()));
        }
        set_mode(&tree.join(name), mode);
    }
    make_fifo(&tree.join("d/pipe"));
    set_mode(&tree.join("d/pipe"), 0o660);
    fullbore(args!["backup", tree, "--to", repo, "-q"]).ends_with(0);
    for (case, mode) in [
        ("new", "640"),
        ("group", "600"),
        ("list", "600"),
        ("there", "600"),
    ] {
        let (target, trace) = (dir.path().join(case), dir.path().join("trace"));
        if case != "new" {
            fs::create_dir_all(target.join("d")).unwrap();
        }
        match case {
            "group" => {
                fs::remove_dir(target.join("d")).unwrap();
                chown(&target, None, Some(OTHER)).unwrap();
                set_mode(&target, 0o2775);
            }
            "list" => {
                fs::remove_dir(target.join("d")).unwrap();
                assert!(set_xattr(&target, "system.posix_acl_default", &list()));
            }
            _ => {}
        }
        let line = "strace -f -qq -e trace=openat,mknodat,fchmod -o \"$1\" \"$2\" restore \"$3\" --to \"$4\" $5 --quiet";
        let how = if case == "there" {
            "--overwrite=all"
        } else {
            "--no-tricks"
        };
        shell(line, args![trace, runs::FULLBORE, repo, target, how]).ends_with(0);
        assert_same(&shape(&tree), &shape(&target), case);
        let trace = fs::read_to_string(trace).unwrap();
        let made = |name: &str| {
            let name = format!("\"{name}\"");
            let is_it = |line: &&str| {
                line.contains(&name) && (line.contains("O_CREAT") || line.contains("mknodat"))
            };
            trace.lines().find(is_it).unwrap()
        };
        for (name, wanted) in [("all", "644"), ("group", mode), ("listed", "600")] {
            assert!(
                made(name).contains(&format!(", 0{wanted}")),
                "{case}: {}",
                made(name)
            );
        }
        let pipe = if case == "new" {
            "S_IFIFO|0660"
        } else {
            "S_IFIFO|0600"
        };
        assert!(made("pipe").contains(pipe), "{case}: {}", made("pipe"));
        // What the list gives to all of it together is never the group's.
        assert!(!trace.contains(", 0740"), "{trace}");
    }
}
