//! Hosts that have no fullbore, or another one.

use super::{
    listening::expect,
    over_ssh::{files, restored, scratch, tree},
    sshd::{self, FULLBORE, sshd},
};
use std::{fs, os::unix::fs::PermissionsExt};

#[test]
fn a_host_without_fullbore_gets_a_copy_that_is_used_again() {
    let dir = scratch();
    let source = dir.path().join("source");
    tree(&source);
    let repository = dir.path().join("repository");
    let there = format!("ssh://far{}", repository.display());
    let run = |code: i32, arguments: &[&str]| {
        let mut command = sshd::program();
        let ssh = sshd().command();
        expect(
            code,
            command
                .args(arguments)
                .args(["--ssh", &ssh, "--install-far"]),
        )
    };
    let backup = ["backup", source.to_str().unwrap(), "--to", &there];
    run(0, &backup);
    let copies = || {
        let dir = fs::read_dir(sshd().cache().join("fullbore")).unwrap();
        let names = dir.map(|entry| entry.unwrap().path());
        names.collect::<Vec<_>>()
    };
    let copy = copies();
    assert_eq!(copy.len(), 1, "{copy:?}");
    assert!(fs::read(&copy[0]).unwrap() == fs::read(FULLBORE).unwrap());
    let made = fs::metadata(&copy[0]).unwrap().modified().unwrap();
    // A source on that host, too: the command there is the copy.
    let far_source = format!("ssh://far{}", source.display());
    let near = dir.path().join("near");
    run(0, &["backup", &far_source, "--to", near.to_str().unwrap()]);
    let target = dir.path().join("restored");
    run(0, &["restore", &there, "--to", target.to_str().unwrap()]);
    assert_eq!(restored(&target, &source), files(&source));
    assert_eq!(copies(), copy);
    assert_eq!(fs::metadata(&copy[0]).unwrap().modified().unwrap(), made);
    // One that was cut off says another version, or nothing: it is replaced.
    fs::write(
        &copy[0],
        "#!/bin/sh\necho 'fullbore wire 999 9.9.9'; exec cat\n",
    )
    .unwrap();
    fs::set_permissions(&copy[0], fs::Permissions::from_mode(0o755)).unwrap();
    run(0, &["list", &there]);
    assert!(fs::read(&copy[0]).unwrap() == fs::read(FULLBORE).unwrap());
}

#[test]
fn a_copy_that_cannot_run_on_the_other_host_is_not_made() {
    let dir = scratch();
    for (name, says, expected) in [
        ("uname", "vax", "that host is \"vax\""),
        ("sha256sum", "0", "another digest"),
    ] {
        let ssh = dir.path().join(format!("ssh-{name}"));
        let cache = dir.path().join(format!("cache-{name}"));
        // The shell of the other host finds this program instead of the system's.
        let bin = dir.path().join(format!("bin-{name}"));
        fs::create_dir(&bin).unwrap();
        let program = bin.join(name);
        fs::write(
            &program,
            format!("#!/bin/sh\n[ {name} = uname ] || cat >/dev/null\necho {says}\n"),
        )
        .unwrap();
        let script = format!(
            "#!/bin/sh\nfor command; do :; done\nexport PATH={}:$PATH XDG_CACHE_HOME={}\nexec sh -c \"$command\"\n",
            bin.display(),
            cache.display()
        );
        fs::write(&ssh, script).unwrap();
        for path in [&ssh, &program] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let mut command = sshd::program();
        command.args(["list", "ssh://any/x", "--install-far", "--ssh"]);
        let said = expect(1, command.arg(&ssh));
        assert!(said.contains(expected), "{name}: {said}");
        let left = fs::read_dir(cache.join("fullbore")).map_or(0, |dir| dir.count());
        assert_eq!(left, 0);
    }
}
