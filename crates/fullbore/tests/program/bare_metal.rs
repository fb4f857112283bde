//! The root of a system is restored into the empty file system of a disk. `scripts/bare-metal-guest` also boots one.

use crate::runs::{
    Mount, assert_same, fullbore, is_root, noise, or_skip, set_mtime, shape, shell, temp, write,
};
use std::{fs, path::Path};

/// What the root of a Debian system has, in small: devices, capabilities, access lists, hard links, setuid programs, holes.
const ROOT: &str = r#"
set -e
cd "$1"
mkdir -p dev proc sys run etc usr/bin usr/lib var/log/journal var/spool/cron root boot home/ana tmp mnt lost+found
ln -s usr/bin bin; ln -s usr/lib lib; ln -s ../run var/run; ln -s /etc/missing dangling
chmod 1777 tmp; chmod 700 root lost+found; chmod 555 proc sys
mknod dev/null c 1 3; chmod 666 dev/null
mknod dev/sda b 8 0; chgrp 6 dev/sda; chmod 660 dev/sda
mkfifo run/initctl
cp /bin/true usr/bin/su; chmod 4755 usr/bin/su
cp /bin/true usr/bin/wall; chgrp 5 usr/bin/wall; chmod 2755 usr/bin/wall
cp /bin/true usr/bin/perl5; ln usr/bin/perl5 usr/bin/perl; ln usr/bin/perl5 usr/bin/perl5.36
cp /bin/true usr/bin/ping
chown 1000:1000 home/ana; echo 'alias ll="ls -l"' >home/ana/.bashrc; chown 1000:1000 home/ana/.bashrc
truncate -s 300M var/log/lastlog; printf x | dd of=var/log/lastlog bs=1 seek=290000 conv=notrunc status=none
"#;

/// Returns whether capabilities and access lists were set.
fn add_attributes(root: &Path) -> bool {
    let lines = r#"cd "$1" && setcap cap_net_raw+ep usr/bin/ping && chgrp 4 var/log/journal && chmod 2755 var/log/journal &&
        setfacl -m g:4:rx,d:g:4:rx var/log/journal && setfattr -n user.origin -v dvd usr/bin/perl &&
        setfattr -n trusted.note -v kept etc"#;
    let ran = shell(lines, args![root]);
    or_skip(ran.code == 0, "no capabilities or access lists here")
}

#[test]
fn the_root_of_a_system_is_restored_into_the_file_system_of_an_empty_disk() {
    if !or_skip(is_root(), "only root makes devices") {
        return;
    }
    let dir = temp();
    let root = dir.path().join("root");
    fs::create_dir(&root).unwrap();
    let made = shell(ROOT, args![root]);
    if !or_skip(made.code == 0, "no devices can be made here") {
        return;
    }
    add_attributes(&root);
    write(root.join("boot/vmlinuz-6.1.0"), noise(1, 6_000_000));
    write(root.join("boot/initrd.img-6.1.0"), noise(2, 9_000_000));
    set_mtime(&root.join("boot/vmlinuz-6.1.0"), 1_600_000_000, 123_456_789);
    let (image, disk) = (dir.path().join("disk"), dir.path().join("mnt"));
    fs::create_dir(&disk).unwrap();
    let line = r#"truncate -s 200M "$1" && mkfs.ext4 -q -F "$1" && mount -o loop "$1" "$2""#;
    let mounted = shell(line, args![image, disk]);
    if !or_skip(mounted.code == 0, "no image can be mounted here") {
        return;
    }
    let mount = Mount::at(&disk);
    let repository = dir.path().join("repo");
    fullbore(args!["backup", root, "--to", repository, "-q"]).ends_with(0);
    fullbore(args!["restore", repository, "--to", disk, "-q"]).ends_with(0);
    // What the disk has in use is written before it is taken away.
    assert_same(&shape(&root), &shape(&disk), "the mounted disk");
    drop(mount);
    let again = shell(
        r#"e2fsck -fn "$1" && mount -o loop,ro "$1" "$2""#,
        args![image, disk],
    );
    assert_eq!(again.code, 0, "{}{}", again.out, again.err);
    let _mount = Mount::at(&disk);
    assert_same(&shape(&root), &shape(&disk), "after it was mounted again");
    fullbore(args!["verify", repository, "--against", disk, "-q"]).ends_with(0);
}
