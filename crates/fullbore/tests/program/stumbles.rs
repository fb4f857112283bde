//! Words of a first day: what people type before they know the program, and the answers.

use crate::runs::{self, Ran, fullbore, is_root, or_skip, shell, temp, write};
use std::{ffi::OsString, fs, os::unix::fs::PermissionsExt, path::Path};

/// Runs as nobody, which needs root.
fn as_nobody(args: impl IntoIterator<Item = OsString>) -> Ran {
    let all = [OsString::from(runs::FULLBORE)].into_iter().chain(args);
    shell(
        "exec setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=-all \"$@\"",
        all,
    )
}

/// Lets every user write into a directory.
fn open_to_all(dir: &Path) {
    fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).unwrap();
}

#[test]
fn a_path_of_the_host_is_found_in_the_backup() {
    let dir = temp();
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    write(one.join("docs/a"), "a");
    write(two.join("b"), "b");
    let (alone, both) = (dir.path().join("alone"), dir.path().join("both"));
    fullbore(args!["backup", one, "--to", alone, "-q"]).ends_with(0);
    fullbore(args!["backup", one, two, "--to", both, "-q"]).ends_with(0);
    let cases = [
        (&alone, one.join("docs/a"), "docs/a"),
        (&alone, one.clone(), "docs/a"),
        (&both, one.join("docs"), "one/docs/a"),
        (&both, two.clone(), "two/b"),
    ];
    for (number, (repository, path, found)) in cases.iter().enumerate() {
        let back = dir.path().join(format!("back{number}"));
        fullbore(args!["restore", repository, "--to", back, path]).ends_with(0);
        assert!(back.join(found).is_file(), "{path:?}");
    }
    let printed = fullbore(args!["cat", both, two.join("b")]).ends_with(0);
    assert_eq!(printed.out, "b");
    let listed = fullbore(args!["list", alone, one.join("docs")]).ends_with(0);
    assert!(listed.out.contains("docs/a"), "{}", listed.out);
    let lost = dir.path().join("lost");
    let ran = fullbore(args!["restore", alone, "--to", lost, one.join("none")]);
    ran.ends_with(1).has_one_error("could not find");
}

#[test]
fn a_backup_in_the_place_of_a_path_is_answered_with_its_selector() {
    let dir = temp();
    write(dir.path().join("tree/a"), "a");
    let (tree, repository) = (dir.path().join("tree"), dir.path().join("repo"));
    fullbore(args!["backup", tree, "--to", repository, "-q"]).ends_with(0);
    let back = dir.path().join("back");
    let ran = fullbore(args!["restore", repository, "--to", back, "latest"]).ends_with(1);
    assert!(ran.err.contains("REPO@latest"), "{}", ran.err);
    let ran = fullbore(args!["-r", repository, "restore", "--to", back, "latest"]).ends_with(1);
    assert!(ran.err.contains("@latest behind -r REPO"), "{}", ran.err);
    let ran = fullbore(args!["cat", "latest", "a"]).ends_with(1);
    assert!(ran.err.contains("write REPO@latest"), "{}", ran.err);
    let ran = fullbore(args!["-r", repository, "cat", "latest", "a"]).ends_with(2);
    assert!(ran.err.contains("write @latest"), "{}", ran.err);
    let ran = fullbore(args!["restore", "-t", repository]).ends_with(2);
    assert!(ran.err.contains("-t is --tag here"), "{}", ran.err);
    let selected = format!("{}@2001-01-01", repository.display());
    let ran = fullbore(args!["restore", selected, "--to", back]).ends_with(1);
    assert!(ran.err.contains("the oldest is \"20"), "{}", ran.err);
}

#[test]
fn a_key_makes_no_repository_that_is_not_encrypted() {
    let dir = temp();
    write(dir.path().join("tree/a"), "a");
    runs::write_private(dir.path().join("pass"), "correct horse battery\n");
    let (tree, pass) = (dir.path().join("tree"), dir.path().join("pass"));
    let repository = dir.path().join("repo");
    let refused = "decide whether it is encrypted";
    let of_init = args!["init", repository, "--passphrase-file", pass];
    fullbore(of_init).ends_with(2).has_one_error(refused);
    let of_backup = args!["backup", tree, "--to", repository, "--key", pass];
    fullbore(of_backup).ends_with(2).has_one_error(refused);
    assert!(!repository.exists());
    fullbore(args![
        "init",
        repository,
        "--passphrase",
        "--passphrase-file",
        pass
    ])
    .ends_with(0);
    let back = dir.path().join("back");
    fullbore(args![
        "backup",
        tree,
        "--to",
        repository,
        "--passphrase-file",
        pass
    ])
    .ends_with(0);
    fullbore(args![
        "restore",
        repository,
        "--to",
        back,
        "--passphrase-file",
        pass
    ])
    .ends_with(0);
    let listed = fullbore(args!["list", repository]).ends_with(0);
    assert!(
        listed.out.contains("--key FILE shows them"),
        "{}",
        listed.out
    );
}

#[test]
fn a_copy_to_a_host_in_the_words_of_rsync_makes_no_directory() {
    let dir = temp();
    write(dir.path().join("tree/a"), "a");
    let line = "cd \"$1\" && \"$2\" copy tree host:tree";
    let ran = shell(line, args![dir.path(), runs::FULLBORE]).ends_with(2);
    assert!(ran.err.contains("ssh://host/"), "{}", ran.err);
    assert!(!dir.path().join("host:tree").exists());
}

#[test]
fn an_ordinary_user_is_told_of_rights_and_of_owners_in_one_line() {
    if !or_skip(is_root() && runs::has("setpriv"), "not root, or no setpriv") {
        return;
    }
    let dir = temp();
    open_to_all(dir.path());
    let (tree, closed) = (dir.path().join("tree"), dir.path().join("closed"));
    for name in ["a", "b", "c"] {
        write(tree.join(name), name);
    }
    fs::create_dir(&closed).unwrap();
    let ran = as_nobody(args!["backup", tree, "--to", closed.join("repo")]).ends_with(1);
    assert!(ran.err.contains("as root (`sudo fullbore"), "{}", ran.err);
    let (repository, back) = (dir.path().join("repo"), dir.path().join("back"));
    as_nobody(args!["backup", tree, "--to", repository, "-q"]).ends_with(0);
    as_nobody(args!["restore", repository, "--to", back, "-q"]).ends_with(0);
    let ran = as_nobody(args!["verify", repository, "--against", back]).ends_with(1);
    let differences: Vec<&str> = ran.out.lines().collect();
    assert_eq!(
        differences,
        [".: 4 entries belong to user 65534, and to others in the backup"]
    );
}

#[test]
fn the_manual_has_the_text_of_each_option() {
    let page = fullbore(args!["man"]).ends_with(0).out;
    for words in [
        "The command that reaches other hosts",
        "unless NO_COLOR is set",
    ] {
        assert!(page.contains(words), "{words}");
    }
}

#[test]
fn a_share_of_a_repository_that_is_not_there_could_not_be_found() {
    let dir = temp();
    let ran = fullbore(args!["verify", dir.path().join("none"), "--for", "1m"]).ends_with(1);
    ran.has_one_error("could not find");
}

#[test]
fn a_tag_and_a_pin_choose_a_backup_as_other_commands_do() {
    let dir = temp();
    let repository = dir.path().join("repo");
    for host in ["a", "b"] {
        write(dir.path().join("tree/f"), host);
        let tree = dir.path().join("tree");
        fullbore(args![
            "backup", tree, "--to", repository, "--host", host, "-q"
        ])
        .ends_with(0);
    }
    fullbore(args!["tag", repository, "x=1"])
        .ends_with(2)
        .has_one_error("2 sources");
    fullbore(args!["tag", repository, "x=1", "--host", "a"]).ends_with(0);
    fullbore(args!["pin", repository, "--tag", "x=1"]).ends_with(0);
    let listed = fullbore(args!["list", repository, "--json"])
        .ends_with(0)
        .json();
    assert_eq!(
        listed[0]["tags"],
        serde_json::json!({"x": "1"}),
        "{listed:?}"
    );
    assert_eq!(
        (&listed[0]["pinned"], &listed[1]["pinned"]),
        (&true.into(), &false.into())
    );
}

#[test]
fn rules_of_a_forget_count_among_what_is_selected_and_touch_nothing_else() {
    let dir = temp();
    let (tree, repository) = (dir.path().join("tree"), dir.path().join("repo"));
    for (number, host) in ["a", "b", "a", "b", "a"].iter().enumerate() {
        write(tree.join("f"), number.to_string());
        let tag = format!("n={number}");
        let line = args![
            "backup", tree, "--to", repository, "--host", host, "--tag", tag, "-q"
        ];
        fullbore(line).ends_with(0);
    }
    let hosts = || -> Vec<String> {
        let listed = fullbore(args!["list", repository, "--json"])
            .ends_with(0)
            .json();
        let host = |line: &serde_json::Value| line["source"]["host"].as_str().unwrap().to_owned();
        listed.iter().map(host).collect()
    };
    let forget = |more: &[&str]| {
        let line = args!["forget", repository, "--keep-last", "1"].into_iter();
        fullbore(line.chain(more.iter().map(OsString::from)))
    };
    forget(&["--host", "c"])
        .ends_with(1)
        .has_one_error("could not find a backup");
    assert_eq!(hosts().len(), 5);
    let ran = forget(&["--host", "a"]).ends_with(0);
    assert!(
        ran.out.contains("2 backups forgotten, 1 kept"),
        "{}",
        ran.out
    );
    assert_eq!(hosts(), ["b", "b", "a"]);
    let ran = forget(&["--tag", "n=1"]).ends_with(0);
    assert!(
        ran.out.contains("0 backups forgotten, 1 kept"),
        "{}",
        ran.out
    );
    assert_eq!(hosts(), ["b", "b", "a"]);
}
