//! Tars of other programs that say less than ours, or more than is to be done.

use crate::runs::{FULLBORE, Ran, has, is_root, or_skip, shell, temp};
use std::{fs, os::unix::fs::MetadataExt, path::Path};

/// A line of shell in `dir`, where `$fullbore` is the program.
fn at(dir: &Path, line: &str) -> Ran {
    shell(
        &format!("cd \"$1\" && fullbore=$2 && {line}"),
        args![dir, FULLBORE],
    )
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

#[test]
fn directories_that_no_member_describes_are_as_mkdir_makes_them() {
    let dir = temp();
    at(
        dir.path(),
        "mkdir -p etc/nginx some/where && touch etc/nginx/n.conf some/where/f && chmod 750 some",
    )
    .ends_with(0);
    at(
        dir.path(),
        "tar -cf x.tar etc/nginx/n.conf --no-recursion some some/where/f",
    )
    .ends_with(0);
    at(dir.path(), "umask 027 && $fullbore restore x.tar --to to").ends_with(0);
    for (path, wanted) in [
        ("etc", 0o750),
        ("etc/nginx", 0o750),
        ("some", 0o750),
        ("some/where", 0o750),
    ] {
        assert_eq!(mode(&dir.path().join("to").join(path)), wanted, "{path}");
    }
    at(
        dir.path(),
        "mkdir tight && umask 277 && $fullbore restore x.tar --to tight",
    )
    .ends_with(0);
    assert_eq!(mode(&dir.path().join("tight/etc")), 0o700);
    at(
        dir.path(),
        "mkdir -m 711 -p there/etc && $fullbore restore x.tar --to there --overwrite",
    )
    .ends_with(0);
    assert_eq!(
        mode(&dir.path().join("there/etc")),
        0o711,
        "it was there before"
    );
}

#[test]
fn permissions_for_users_by_name_are_restored_or_give_nobody_more() {
    let dir = temp();
    let make = "touch f && chmod 600 f && setfacl -m u:daemon:rwx f && tar --acls -cf x.tar f";
    if !or_skip(
        has("setfacl") && is_root() && at(dir.path(), make).code == 0,
        "there are no access control lists",
    ) {
        return;
    }
    at(
        dir.path(),
        "sed s/:daemon:/:daemox:/ x.tar > y.tar && ! cmp -s x.tar y.tar",
    )
    .ends_with(0);
    at(dir.path(), "$fullbore restore x.tar --to known").ends_with(0);
    let lists = at(dir.path(), "getfacl -p f && getfacl -p known/f")
        .ends_with(0)
        .out;
    let (made, restored) = lists.split_once("\n\n").unwrap();
    assert!(
        lists.contains("user:daemon:rwx") && restored.replace("known/f", "f").trim() == made.trim(),
        "{lists}"
    );
    let ran = at(dir.path(), "$fullbore restore y.tar --to unknown").ends_with(0);
    assert!(ran.err.contains("daemox"), "{}", ran.err);
    assert_eq!(
        mode(&dir.path().join("unknown/f")),
        0o600,
        "its group had nothing"
    );
}

#[test]
fn permissions_that_cannot_be_read_give_nobody_more_and_are_no_damage() {
    let dir = temp();
    let make = "echo one > f && chmod 600 f && setfacl -m u:daemon:rwx f && echo two > g && tar --acls -cf x.tar f g";
    if !or_skip(
        has("setfacl") && is_root() && at(dir.path(), make).code == 0,
        "there are no access control lists",
    ) {
        return;
    }
    for (index, other) in ["user:dae on", "user:d\\\\040n", "uses:daemon"]
        .into_iter()
        .enumerate()
    {
        at(
            dir.path(),
            &format!("sed 's/user:daemon:/{other}:/' x.tar > y.tar && ! cmp -s x.tar y.tar"),
        )
        .ends_with(0);
        let ran = at(
            dir.path(),
            &format!("$fullbore restore y.tar --to to{index}"),
        )
        .ends_with(0);
        assert!(
            ran.err.contains("note: permissions "),
            "{other}: {}",
            ran.err
        );
        assert_eq!(
            mode(&dir.path().join(format!("to{index}/f"))),
            0o600,
            "{other}: its group had nothing"
        );
        assert!(dir.path().join(format!("to{index}/g")).exists(), "{other}");
    }
}

#[test]
fn a_hard_link_that_was_asked_for_without_its_file_is_an_error() {
    let dir = temp();
    at(
        dir.path(),
        "echo one > a && ln a z && echo two > b && tar -cf x.tar a b z",
    )
    .ends_with(0);
    let ran = at(dir.path(), "$fullbore restore x.tar --to to b z")
        .ends_with(1)
        .has_one_error("\"z\"");
    assert!(ran.err.contains("\"a\""), "{}", ran.err);
    assert!(dir.path().join("to/b").exists() && !dir.path().join("to/z").exists());
    at(dir.path(), "$fullbore restore x.tar --to both a z").ends_with(0);
}

#[test]
fn a_member_that_is_left_out_is_an_error_when_all_others_are_restored() {
    let dir = temp();
    at(dir.path(), "echo one > a && ln a z && echo two > y && tar -cf gone.tar a z y && tar -f gone.tar --delete a")
        .ends_with(0);
    at(dir.path(), "cp gone.tar late.tar && tar -rf late.tar a").ends_with(0);
    let python = r#"
import io, tarfile
for kind in "MZV":
    with tarfile.open(kind + ".tar", "w", format=tarfile.GNU_FORMAT) as tar:
        member = tarfile.TarInfo("odd")
        member.type, member.size = kind.encode(), 600
        tar.addfile(member, io.BytesIO(b"x" * 600))
        tar.add("y")
"#;
    fs::write(dir.path().join("odd.py"), python).unwrap();
    if !or_skip(has("python3"), "there is no Python") {
        return;
    }
    at(dir.path(), "python3 odd.py").ends_with(0);
    for (tar, code, words) in [
        ("gone", 1, "hard link to \"a\""),
        ("late", 1, "hard link to \"a\""),
        ("M", 1, "another volume"),
        ("Z", 1, "type 'Z'"),
        ("V", 0, "note: "),
    ] {
        let ran = at(
            dir.path(),
            &format!("$fullbore restore {tar}.tar --to {tar} && cat {tar}/y"),
        )
        .ends_with(code);
        assert!(ran.err.contains(words), "{tar}: {}", ran.err);
        assert!(dir.path().join(tar).join("y").exists(), "{tar}");
        assert!(!dir.path().join(tar).join("odd").exists(), "{tar}");
    }
}

#[test]
fn a_member_that_cannot_be_made_does_not_end_the_restore() {
    let dir = temp();
    at(
        dir.path(),
        "mkdir d && chmod 750 d && echo one > d/in && echo two > f && ln -s f s && echo z > z",
    )
    .ends_with(0);
    at(dir.path(), "truncate -s 3M b && echo three > p && ln p q").ends_with(0);
    let refused = [
        (
            "file over a full directory",
            "tar -cf x.tar d && tar -rf x.tar --transform s,^f,d, f",
        ),
        (
            "large file over it",
            "tar -cf x.tar d && tar -rf x.tar --transform s,^b,d, b",
        ),
        (
            "link over it",
            "tar -cf x.tar d && tar -rf x.tar --transform s,^s,d,S s",
        ),
        (
            "below a file",
            "tar -cf x.tar --transform s,^f,d, f && tar -rf x.tar d/in && tar -rf x.tar d",
        ),
        (
            "below a link",
            "tar -cf x.tar --transform s,^s,d,S s && tar -rf x.tar --no-recursion d/in",
        ),
        (
            "hard link to a directory",
            "tar -cf x.tar p q && tar -f x.tar --delete p && tar -rf x.tar --transform s,^d,p, d && \
            tar -cf y.tar --transform s,^d,p, d && tar -Af y.tar x.tar && mv y.tar x.tar",
        ),
        (
            "long name",
            "tar -cf x.tar --transform \"s,^f,$(printf %0300d 1),\" f",
        ),
        (
            "large file of a long name",
            "tar -cf x.tar --transform \"s,^b,$(printf %0300d 1),\" b",
        ),
    ];
    for (index, (case, make)) in refused.into_iter().enumerate() {
        at(dir.path(), &format!("{make} && tar -rf x.tar z")).ends_with(0);
        let ran = at(dir.path(), &format!("$fullbore restore x.tar --to {index}")).ends_with(1);
        assert!(
            ran.err.contains("skipped; the rest of the tar is restored"),
            "{case}: {}",
            ran.err
        );
        assert!(!ran.err.contains("--overwrite"), "{case}: {}", ran.err);
        assert!(dir.path().join(format!("{index}/z")).exists(), "{case}");
    }
    assert_eq!(
        mode(&dir.path().join("0/d")),
        0o750,
        "it is still the directory it was"
    );
    assert!(dir.path().join("0/d/in").exists());
}

#[test]
fn a_stream_of_an_incremental_backup_is_not_called_a_whole_one() {
    let dir = temp();
    at(
        dir.path(),
        "mkdir d && head -c 3000000 /dev/urandom > d/big && $fullbore backup d --to repo",
    )
    .ends_with(0);
    at(
        dir.path(),
        "printf x | dd of=d/big bs=1 seek=1500000 conv=notrunc && echo one > d/new",
    )
    .ends_with(0);
    at(dir.path(), "$fullbore backup d --to repo && cat \"repo/backups/$(ls repo/backups | tail -1)\"/s*.tar.* > x")
        .ends_with(0);
    let ran = at(dir.path(), "$fullbore restore - --to to < x")
        .ends_with(1)
        .has_one_error("a piece of a file");
    assert!(ran.err.contains("repository"), "{}", ran.err);
    assert!(dir.path().join("to/new").exists() && !dir.path().join("to/.fullbore").exists());
    at(
        dir.path(),
        "$fullbore restore - --to raw .fullbore/parts < x && test -d raw/.fullbore/parts/big",
    )
    .ends_with(0);
}

#[test]
fn names_from_the_root_are_below_the_target() {
    let dir = temp();
    at(
        dir.path(),
        "echo one > a && ln a z && tar -Pcf x.tar \"$PWD/a\" \"$PWD/z\"",
    )
    .ends_with(0);
    at(dir.path(), "$fullbore restore x.tar --to to && cmp a \"to/$PWD/a\" && test \"to/$PWD/a\" -ef \"to/$PWD/z\"")
        .ends_with(0);
}

#[test]
fn a_name_that_leads_out_is_refused_and_all_others_are_restored() {
    let dir = temp();
    at(
        dir.path(),
        "mkdir d && echo out > d/out && echo one > before && echo two > after",
    )
    .ends_with(0);
    at(dir.path(), "tar -cf x.tar before && tar -Prf x.tar d/../d/out && tar -Prf x.tar --transform s,^,../, d/out")
        .ends_with(0);
    at(dir.path(), "tar -rf x.tar after").ends_with(0);
    let ran = at(dir.path(), "$fullbore restore x.tar --to to")
        .ends_with(1)
        .has_one_error("d/../d/out");
    assert!(ran.err.contains("leads out"), "{}", ran.err);
    let names = at(dir.path(), "ls to").out;
    assert_eq!(
        names.split_whitespace().collect::<Vec<_>>(),
        ["after", "before"]
    );
    at(dir.path(), "head -c 3800 x.tar > cut.tar").ends_with(0);
    let ran = at(
        dir.path(),
        "$fullbore restore cut.tar --to cut --keep-going",
    )
    .ends_with(4);
    assert!(
        ran.err.contains("leads out") && ran.err.contains("damage: "),
        "{}",
        ran.err
    );
}

#[test]
fn a_later_member_may_be_of_another_kind() {
    let dir = temp();
    at(dir.path(), "mkdir -p one two/f three && echo one > one/f && echo two > two/f/in && mkdir three/e two/g")
        .ends_with(0);
    at(
        dir.path(),
        "echo three > three/g && tar -cf x.tar -C one f -C ../two f g -C ../three e g",
    )
    .ends_with(0);
    at(
        dir.path(),
        "$fullbore restore x.tar --to to && diff -r two/f to/f && diff three/g to/g",
    )
    .ends_with(0);
}

#[test]
fn what_follows_the_end_of_a_tar_and_is_none_is_passed_over() {
    let dir = temp();
    at(
        dir.path(),
        "mkdir -m 750 d && echo one > d/f && tar -cf x.tar d && head -c 5000 /dev/urandom > r",
    )
    .ends_with(0);
    let ran = at(
        dir.path(),
        "cat x.tar r > y.tar && $fullbore restore y.tar --to to",
    )
    .ends_with(0);
    assert!(
        ran.err.contains("note: ") && ran.err.contains("after the end of the tar"),
        "{}",
        ran.err
    );
    assert_eq!(
        (
            mode(&dir.path().join("to/d")),
            dir.path().join("to/d/f").exists()
        ),
        (0o750, true)
    );
    // Zeros in the middle of a tar look like its end.
    at(
        dir.path(),
        "(head -c 1024 /dev/zero; cat r; cat x.tar) > tail && cat x.tar tail > z.tar",
    )
    .ends_with(0);
    at(dir.path(), "$fullbore restore z.tar --to lost").ends_with(4);
    at(
        dir.path(),
        "truncate -s 5120 r && cat x.tar r > z.tar && head -c 10240 /dev/zero >> z.tar",
    )
    .ends_with(0);
    at(dir.path(), "$fullbore restore z.tar --to lost2").ends_with(4);
}

#[test]
fn what_is_mounted_in_the_target_is_made_durable_too() {
    let dir = temp();
    let mounts = "unshare -m true && mkdir -p to/m d/m && echo x > d/m/f && tar -cf x.tar -C d m/f";
    if !or_skip(
        has("strace") && is_root() && at(dir.path(), mounts).code == 0,
        "nothing can be mounted or traced",
    ) {
        return;
    }
    let line = "unshare -m sh -c 'mount -t tmpfs none to/m && strace -f -qq -e trace=syncfs -o trace \
                \"$0\" restore x.tar --to to --overwrite && cat to/m/f' \"$fullbore\"";
    assert_eq!(at(dir.path(), line).ends_with(0).out, "x\n");
    let trace = fs::read_to_string(dir.path().join("trace")).unwrap();
    assert_eq!(
        trace.lines().filter(|line| line.contains("syncfs")).count(),
        2,
        "{trace}"
    );
}

#[test]
fn a_hard_link_to_itself_is_no_file() {
    let dir = temp();
    let make = "import tarfile,io;t=tarfile.open('t.tar','w');h=tarfile.TarInfo('h');h.type=b'1';h.linkname='h';t.addfile(h);\
k=tarfile.TarInfo('k');k.size=1;t.addfile(k,io.BytesIO(b'x'));t.close()";
    at(dir.path(), &format!("python3 -c \"{make}\"")).ends_with(0);
    let ran = at(dir.path(), "$fullbore restore t.tar --to to").ends_with(1);
    assert!(ran.err.contains("\"h\""), "{}", ran.err);
    assert!(dir.path().join("to/k").exists() && !dir.path().join("to/h").exists());
}

#[test]
fn a_hard_link_is_none_to_what_the_target_held_before() {
    let dir = temp();
    let make = "import tarfile,io;t=tarfile.open('t.tar','w');h=tarfile.TarInfo('h');h.type=b'1';h.linkname='h';t.addfile(h);\
l=tarfile.TarInfo('l');l.type=b'1';l.linkname='old';t.addfile(l);\
k=tarfile.TarInfo('k');k.size=1;t.addfile(k,io.BytesIO(b'x'));t.close()";
    at(
        dir.path(),
        &format!("python3 -c \"{make}\" && mkdir to && touch to/h to/old"),
    )
    .ends_with(0);
    for input in ["t.tar", "- < t.tar"] {
        let ran = at(
            dir.path(),
            &format!("$fullbore restore --to to --overwrite {input}"),
        )
        .ends_with(1);
        assert!(
            ran.err
                .contains("cannot restore \"h\", a hard link to \"h\""),
            "{}",
            ran.err
        );
        assert!(
            ran.err
                .contains("cannot restore \"l\", a hard link to \"old\""),
            "{}",
            ran.err
        );
        assert_eq!(
            at(dir.path(), "ls to")
                .out
                .split_whitespace()
                .collect::<Vec<_>>(),
            ["h", "k", "old"],
            "{}",
            ran.err
        );
    }
    // tar names a file twice that was given to it twice: then it is there.
    at(dir.path(), "echo new > h && ln h z && tar -cf twice.tar h h z && tar -tvf twice.tar | grep 'link to h' > /dev/null")
        .ends_with(0);
    at(
        dir.path(),
        "$fullbore restore twice.tar --to to --overwrite && cmp h to/h && test to/h -ef to/z",
    )
    .ends_with(0);
    // One that was not asked for.
    let ran = at(
        dir.path(),
        "$fullbore restore twice.tar z --to to --overwrite",
    )
    .ends_with(1);
    assert!(
        ran.err.contains("was not requested") && ran.err.contains("request both"),
        "{}",
        ran.err
    );
}

#[test]
fn a_tar_of_another_program_is_said_to_have_no_delta() {
    let dir = temp();
    at(
        dir.path(),
        "mkdir d && echo one > d/f && tar -cf x.tar d && mkdir to",
    )
    .ends_with(0);
    for how in ["--delta", "--delta --delete", "--delta --delete --plan"] {
        let ran = at(
            dir.path(),
            &format!("$fullbore restore x.tar --to to {how}"),
        )
        .ends_with(1);
        let ran = ran.has_one_error("cannot restore \"x.tar\" with --delta");
        assert!(
            ran.err.contains("another program") && ran.err.contains("hint:  use --overwrite"),
            "{}",
            ran.err
        );
    }
    at(
        dir.path(),
        "$fullbore restore x.tar --to to --overwrite && cmp d/f to/d/f",
    )
    .ends_with(0);
}

#[test]
fn what_zstd_wants_more_for_is_no_damage() {
    let dir = temp();
    at(
        dir.path(),
        "mkdir d && head -c 5000000 /dev/urandom > d/f && tar -cf x.tar d",
    )
    .ends_with(0);
    // A window of 2 GiB, and one that fits as long as the file does.
    at(
        dir.path(),
        "zstd -q --long=31 < x.tar > long.tar.zst && zstd -q --long=27 < x.tar > fits.tar.zst",
    )
    .ends_with(0);
    for line in [
        "restore long.tar.zst --to to",
        "restore - --to to2 < long.tar.zst",
        "verify long.tar.zst",
        "list long.tar.zst",
    ] {
        let ran = at(dir.path(), &format!("$fullbore {line}")).ends_with(1);
        assert!(
            ran.err.contains("zstd -dc --long=31 FILE | fullbore"),
            "{line}: {}",
            ran.err
        );
    }
    at(
        dir.path(),
        "$fullbore restore fits.tar.zst --to fits && diff -r d fits/d",
    )
    .ends_with(0);
    at(
        dir.path(),
        "zstd -dc --long=31 long.tar.zst | $fullbore restore - --to piped && diff -r d piped/d",
    )
    .ends_with(0);
}
