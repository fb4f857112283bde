//! Copies of files, of several sources, of a whole system, and by a user; and what rsync's users type.

use super::{
    copy, result,
    runs::{
        FULLBORE, Ran, assert_same, differences, fullbore, has, is_root, noise, or_skip, set_mode,
        shape, shell, temp, write,
    },
    sshd::sshd,
};
use std::{
    fs,
    os::unix::{
        fs::{MetadataExt, symlink},
        net::UnixListener,
    },
    path::Path,
};

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

/// Runs fullbore as a user without rights.
fn as_user(options: &str, dir: &Path) -> Ran {
    let user = "setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=-all";
    let line = format!("cd \"$1\" && HOME=$1 FULLBORE_STATE=$1/state exec {user} \"$2\" {options}");
    shell(&line, args![dir, FULLBORE])
}

fn may_be_user() -> bool {
    or_skip(is_root() && has("setpriv"), "not root, or no setpriv")
}

#[test]
fn a_single_file_is_written_below_a_directory_or_by_another_name() {
    let dir = temp();
    let at = |name: &str| dir.path().join(name);
    write(at("f"), "one");
    write(at("d/other"), "kept");
    for again in [1, 0] {
        for (target, made) in [("d", "d/f"), ("named", "named"), ("new/", "new/f")] {
            let target = format!("{}/{target}", dir.path().display());
            let ran = copy(args![at("f"), target, "--json"]).ends_with(0);
            assert_eq!(result(&ran)["added"], again, "{target}: {}", ran.out);
            assert_eq!(read(&at(made)), "one");
        }
    }
    assert_eq!(read(&at("d/other")), "kept");
    write(at("f"), "three");
    let ran = copy(args![at("f"), at("named"), "-v"]).ends_with(0);
    assert!(ran.out.contains("~ named\n"), "{}", ran.out);
    assert_eq!(read(&at("named")), "three");
    symlink("nowhere", at("link")).unwrap();
    copy(args![at("link"), at("d")]).ends_with(0);
    assert_eq!(fs::read_link(at("d/link")).unwrap(), Path::new("nowhere"));
    copy(args![at("f"), at("f")]).has_one_error("they are the same");
    copy(args![at("f"), at("no/where")]).has_one_error("does not exist");
    assert!(!at("no").exists());
}

#[test]
fn a_large_file_is_changed_in_place_also_by_another_name() {
    let dir = temp();
    let at = |name: &str| dir.path().join(name);
    let mut content = noise(3, 5_000_000);
    write(at("large"), &content);
    copy(args![at("large"), at("other")]).ends_with(0);
    let inode = fs::metadata(at("other")).unwrap().ino();
    content[2_000_000] ^= 1;
    write(at("large"), &content);
    let ran = copy(args![at("large"), at("other"), "--json"]).ends_with(0);
    assert_eq!(result(&ran)["sent_bytes"], 65_536, "{}", ran.out);
    assert!(fs::read(at("other")).unwrap() == content);
    assert_eq!(fs::metadata(at("other")).unwrap().ino(), inode);
}

#[test]
fn several_sources_are_written_by_their_names_and_nothing_beside_them_is_touched() {
    let dir = temp();
    let at = |name: &str| dir.path().join(name);
    write(at("f"), "f");
    write(at("a/x/y"), "y");
    write(at("a/log"), "log");
    fs::hard_link(at("f"), at("a/linked")).unwrap();
    write(at("e/b/z"), "z");
    let sources = args![at("f"), at("a/"), at("e/b")];
    let run = |options: &[&str]| {
        let options = options.iter().map(Into::into);
        copy(
            sources
                .clone()
                .into_iter()
                .chain(args![at("to")])
                .chain(options),
        )
    };
    run(&[]).ends_with(0);
    assert_same(&shape(&at("a/x")), &shape(&at("to/a/x")), "a");
    assert_same(&shape(&at("e/b")), &shape(&at("to/b")), "b");
    assert_eq!(fs::metadata(at("to/f")).unwrap().nlink(), 2);
    write(at("to/beside"), "kept");
    write(at("to/a/extra/in"), "gone");
    write(at("to/b/extra"), "gone");
    let same = run(&["--json"]).ends_with(0);
    assert_eq!(
        (&result(&same)["added"], &result(&same)["changed"]),
        (&0.into(), &2.into())
    );
    let planned = run(&["--delete", "-n"]).ends_with(0).out;
    assert!(
        planned.contains("- a/extra\n") && planned.contains("- b/extra\n"),
        "{planned}"
    );
    run(&["--delete"]).ends_with(0);
    assert_eq!(read(&at("to/beside")), "kept");
    assert_same(&shape(&at("a")), &shape(&at("to/a")), "a, with --delete");
    assert_same(&shape(&at("e/b")), &shape(&at("to/b")), "b, with --delete");
    let all = result(&run(&["--delete", "--checksum", "--json"]).ends_with(0));
    assert_eq!(
        (&all["added"], &all["changed"], &all["removed"]),
        (&0.into(), &0.into(), &0.into())
    );
    // A pattern may be for one of them, and for one as a whole.
    write(at("a/x/y"), "y, changed");
    write(at("f"), "f, changed");
    let pattern = format!("{}/x", at("a").display());
    let left = run(&["-e", "/f", "-e", &pattern]).ends_with(0);
    assert!(!left.err.contains("matched nothing"), "{}", left.err);
    assert_eq!(
        (read(&at("to/f")), read(&at("to/a/x/y"))),
        ("f".to_owned(), "y".to_owned())
    );
    write(at("other/f"), "f");
    copy(args![at("f"), at("other/f"), at("to")]).has_one_error("the same name");
    copy(args![at("a"), "/", at("to")]).has_one_error("it has no name");
    copy(args![at("a"), at("e"), at("a")]).has_one_error("one contains the other");
}

#[test]
fn files_and_several_sources_go_over_ssh_both_ways() {
    let dir = temp();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let far = |name: &str| format!("ssh://far{}", path(name));
    write(path("f"), "f");
    write(path("a/x"), "x");
    let run = |words: &[String]| -> Ran {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let words = [&["copy"], &words[..]].concat();
        sshd().fullbore(&words).output().unwrap().into()
    };
    for target in ["pushed", "pulled"] {
        fs::create_dir(path(target)).unwrap();
        let place = |name: &str, is_far: bool| if is_far { far(name) } else { path(name) };
        let from = |name: &str| place(name, target == "pulled");
        let to = |name: &str| place(name, target == "pushed");
        let at = |name: &str| dir.path().join(target).join(name);
        run(&[from("f"), to(target)]).ends_with(0);
        run(&[from("f"), to(&format!("{target}/named"))]).ends_with(0);
        run(&[from("f"), to(&format!("{target}/new/"))]).ends_with(0);
        run(&[from("f"), from("a"), to(&format!("{target}/both"))]).ends_with(0);
        for file in ["f", "named", "new/f", "both/f"] {
            assert_eq!(read(&at(file)), "f", "{target}/{file}");
        }
        write(at("both/a/extra"), "gone");
        write(at("both/beside"), "kept");
        let words = [
            from("f"),
            from("a"),
            to(&format!("{target}/both")),
            "--delete".to_owned(),
        ];
        run(&words).ends_with(0);
        assert_same(&shape(&dir.path().join("a")), &shape(&at("both/a")), target);
        assert_eq!(read(&at("both/beside")), "kept");
    }
    let two = [path("f"), far("a"), path("pushed")];
    run(&two).has_one_error("a copy is from one host to a directory");
}

#[test]
fn a_system_is_cloned_to_a_disk_that_is_mounted_below_its_root() {
    if !or_skip(
        is_root() && has("unshare") && has("chroot"),
        "no root, or no unshare",
    ) {
        return;
    }
    let dir = temp();
    let script = r#"
        set -e
        root=$1; program=$2
        mount --make-rprivate /
        mount -t tmpfs none "$root"
        cd "$root"
        mkdir -p usr proc dev program etc/deep mnt/clone mnt/other data home
        for name in lib lib32 lib64 libx32 bin sbin; do
            if [ -L "/$name" ]; then cp -a "/$name" .; elif [ -d "/$name" ]; then mkdir "$name"; mount --rbind "/$name" "$name"; fi
        done
        mount --rbind /usr usr
        mount --rbind /proc proc
        mount --rbind /dev dev
        mount --bind "${program%/*}" program
        mount -t tmpfs none mnt/clone
        mount -t tmpfs none mnt/other
        echo deep > etc/deep/file
        echo other > mnt/other/file
        ln etc/deep/file data/linked
        mkdir mnt/bound; mount --bind mnt/clone mnt/bound
        run() { HOME=/home FULLBORE_STATE=/home/state chroot . "/program/${program##*/}" copy "$@"; }
        run / /mnt/clone && exit 90 || echo refused $?
        run / /mnt/clone -x --exclude /home
        cat mnt/clone/etc/deep/file
        [ "$(stat -c %i mnt/clone/etc/deep/file)" = "$(stat -c %i mnt/clone/data/linked)" ]
        [ -z "$(cd mnt/clone && find mnt/clone mnt/other usr mnt/bound -mindepth 1)" ]
        rm etc/deep/file; echo new > etc/new; echo stays > mnt/clone/mnt/other/own
        run / /mnt/clone -x --exclude /home --delete
        [ ! -e mnt/clone/etc/deep/file ] && cat mnt/clone/etc/new mnt/clone/mnt/other/own
        run / /mnt/clone -x --exclude /home --delete --json | tail -n 1
        mkdir -p data/inner; mount -t tmpfs none home
        run /data/inner / -x && exit 91 || echo refused $?
        mount --bind etc mnt/bound
        run / /mnt/bound -x && exit 92 || echo refused $?
    "#;
    let ran = shell(
        "exec unshare -m sh -c \"$1\" sh \"$2\" \"$3\"",
        args![script, dir.path(), FULLBORE],
    );
    let ran = ran.ends_with(0);
    let lines: Vec<&str> = ran.out.lines().collect();
    for line in ["deep", "new", "stays"] {
        assert!(lines.contains(&line), "{line}: {}", ran.out);
    }
    let refused = lines.iter().filter(|line| **line == "refused 2");
    assert_eq!(refused.count(), 3, "{}\n{}", ran.out, ran.err);
    assert!(
        ran.err.contains("or -x if it is on another file system"),
        "{}",
        ran.err
    );
    let last = lines
        .iter()
        .find(|line| line.contains("\"result\""))
        .unwrap();
    let last: serde_json::Value = serde_json::from_str(last).unwrap();
    assert_eq!(
        (&last["added"], &last["removed"]),
        (&0.into(), &0.into()),
        "{last}"
    );
}

#[test]
fn a_target_below_the_source_is_copied_to_if_a_pattern_leaves_it_out() {
    let dir = temp();
    let source = dir.path().join("from");
    let target = source.join("to");
    write(source.join("a/b"), "b");
    copy(args![source, target]).has_one_error("--exclude \"/to\"");
    copy(args![source, target, "-e", "/other"]).has_one_error("one contains the other");
    for again in [3, 0] {
        let ran = copy(args![
            source,
            target,
            "--exclude",
            "/to",
            "--delete",
            "--json"
        ])
        .ends_with(0);
        assert_eq!(result(&ran)["added"], again, "{}", ran.out);
        assert_eq!(read(&target.join("a/b")), "b");
        assert!(!target.join("to").exists());
    }
}

#[test]
fn a_user_copies_files_of_others_once() {
    if !may_be_user() {
        return;
    }
    let dir = temp();
    set_mode(dir.path(), 0o777);
    let source = dir.path().join("from");
    write(source.join("a/b"), "b");
    write(source.join("suid"), "suid");
    set_mode(&source.join("suid"), 0o4755);
    write(source.join("mine"), "mine");
    let (other, suid, mine) = (source.join("a/b"), source.join("suid"), source.join("mine"));
    shell(
        "chown 12:34 \"$1\" && chown 12:34 \"$2\" && chmod 4755 \"$2\" && chown 65534:65534 \"$3\" && chmod 2755 \"$3\"",
        args![other, suid, mine],
    )
    .ends_with(0);
    let first = as_user("copy from to", dir.path()).ends_with(0);
    assert!(first.err.contains("owner not copied"), "{}", first.err);
    for options in ["", "--checksum", "--numeric-owner"] {
        let again = as_user(&format!("copy from to --json {options}"), dir.path()).ends_with(0);
        assert_eq!(result(&again)["changed"], 0, "{options}: {}", again.out);
        // With --checksum, the metadata of compared files is set again.
        let is_told = again.err.contains("not copied");
        assert_eq!(is_told, options == "--checksum", "{}", again.err);
    }
    let mode = |name: &str| {
        fs::metadata(dir.path().join("to").join(name))
            .unwrap()
            .mode()
            & 0o7777
    };
    assert_eq!((mode("suid"), mode("mine")), (0o755, 0o2755));
    // What the user can set is still compared.
    set_mode(&source.join("mine"), 0o755);
    set_mode(&other, 0o600);
    set_mode(&other, 0o604);
    let changed = as_user("copy from to -v", dir.path()).ends_with(0);
    assert!(
        changed.out.contains("~ mine\n") && changed.out.contains("~ a/b\n"),
        "{}",
        changed.out
    );
    // Root sets all of it.
    let by_root = copy(args![source, dir.path().join("to"), "--json"]).ends_with(0);
    assert!(
        result(&by_root)["changed"].as_u64() >= Some(4),
        "{}",
        by_root.out
    );
    assert_eq!(
        differences(&shape(&source), &shape(&dir.path().join("to"))),
        Vec::<String>::new()
    );
}

#[test]
fn counts_are_of_what_is_there_at_the_end() {
    if !may_be_user() {
        return;
    }
    let dir = temp();
    set_mode(dir.path(), 0o777);
    let source = dir.path().join("from");
    write(source.join("readable"), "x");
    write(source.join("secret"), "x");
    write(source.join("large secret"), noise(1, 3_000_000));
    write(source.join("closed/in"), "x");
    let _socket = UnixListener::bind(source.join("socket")).unwrap();
    for (name, mode) in [
        ("secret", 0o600),
        ("large secret", 0o600),
        ("closed", 0o700),
    ] {
        set_mode(&source.join(name), mode);
    }
    // The root, "readable" and "closed", whose content is not known.
    for (new, same) in [(3, 0), (0, 3)] {
        let ran = as_user("copy from to --json", dir.path());
        assert_eq!(ran.code, 3, "{}", ran.err);
        let counts = result(&ran);
        let found = (&counts["added"], &counts["same"], &counts["sockets"]);
        assert_eq!(found, (&new.into(), &same.into(), &1.into()), "{counts}");
        assert_eq!(counts["failure_count"], 3, "{counts}");
    }
    let text = as_user("copy from to", dir.path());
    assert!(
        text.out.contains("; 1 socket not copied") || text.err.contains("; 1 socket not copied"),
        "{}",
        text.err
    );
    // A file that is there and cannot be replaced did not change.
    write(dir.path().join("two/d/f"), "new");
    let target = dir.path().join("to two");
    write(target.join("d/f"), "earlier");
    shell("chown 65534 \"$1\"", args![target]).ends_with(0);
    let refused = as_user("copy two 'to two' --json", dir.path());
    assert_eq!(refused.code, 3, "{}", refused.err);
    assert_eq!(
        (&result(&refused)["added"], read(&target.join("d/f"))),
        (&0.into(), "earlier".to_owned())
    );
}

#[test]
fn what_users_of_rsync_type_is_taken_or_answered() {
    let dir = temp();
    let (source, target) = (dir.path().join("from"), dir.path().join("to"));
    write(source.join("a"), "a");
    for letters in [
        "-a", "-rv", "-avhP", "-rlptgoD", "-aHAXS", "-avz", "-r", "-W",
    ] {
        let _ = fs::remove_dir_all(&target);
        copy(args![letters, source, target, "--progress", "--partial"]).ends_with(0);
        assert_same(&shape(&source), &shape(&target), letters);
    }
    let listed = copy(args!["-anv", source, dir.path().join("new")]).ends_with(0);
    assert!(
        listed.out.contains("+ a\n") && !dir.path().join("new").exists(),
        "{}",
        listed.out
    );
    for (word, hint) in [
        ("-u", "-n lists them first"),
        ("-L", "keeps links as links"),
        ("-aR", "name the whole target"),
        ("--backup", "keeps every state"),
        ("--bwlimit=1M", "--max-rate"),
        ("--files-from=list", "name each file as a SRC"),
        ("--link-dest=../0", "keeps all of them"),
        ("-i", "-v lists new and changed entries"),
    ] {
        let ran = copy(args![word, source, target]);
        assert!(
            ran.code == 2 && ran.err.contains(hint),
            "{word}: {}",
            ran.err
        );
    }
    copy(args![source, target, "-t", "x"]).has_one_error("it selects a backup");
    let error = copy(args!["-ave", "ssh", source, target]);
    assert!(error.err.contains("ssh://HOST/PATH"), "{}", error.err);
}

#[test]
fn a_pattern_that_begins_with_the_source_as_typed_is_for_what_is_below_it() {
    let dir = temp();
    write(dir.path().join("cs/sub/s"), "s");
    write(dir.path().join("cs/a"), "a");
    let run = |options: &str| {
        shell(
            &format!("cd \"$1\" && exec \"$2\" copy {options}"),
            args![dir.path(), FULLBORE],
        )
    };
    for (source, pattern) in [("cs", "cs/sub"), ("./cs/", "cs/sub"), ("cs", "./cs/sub")] {
        let _ = fs::remove_dir_all(dir.path().join("to"));
        let ran = run(&format!("{source} to -e {pattern}")).ends_with(0);
        assert!(
            !ran.err.contains("matched nothing"),
            "{source} {pattern}: {}",
            ran.err
        );
        let made = dir.path().join("to");
        assert!(
            made.join("a").exists() && !made.join("sub").exists(),
            "{source} {pattern}"
        );
    }
    // There is such a path in the source: the pattern is for that.
    write(dir.path().join("cs/cs/sub/deep"), "s");
    run("cs other -e cs/sub").ends_with(0);
    assert!(dir.path().join("other/sub/s").exists() && !dir.path().join("other/cs/sub").exists());
    let told = run("cs third -e cs/none").ends_with(0);
    assert!(told.err.contains("matched nothing"), "{}", told.err);
}

#[test]
fn a_directory_is_not_copied_into_a_repository() {
    let dir = temp();
    let (source, repository) = (dir.path().join("from"), dir.path().join("repo"));
    write(source.join("a"), "a");
    fullbore(args!["backup", source, "--to", repository]).ends_with(0);
    let before = shape(&repository);
    let refused = copy(args![source, repository]).has_one_error("that is a repository");
    assert!(refused.err.contains("fullbore backup "), "{}", refused.err);
    copy(args![source, source.join("a"), repository]).has_one_error("that is a repository");
    copy(args![source, repository.join("x")]).has_one_error("it is in the repository");
    assert_same(&before, &shape(&repository), "the repository");
    copy(args![repository, dir.path().join("second")]).ends_with(0);
    copy(args![repository, dir.path().join("second")]).ends_with(0);
}
