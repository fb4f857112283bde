//! The mounts below a directory, from `/proc/self/mountinfo`.
//!
//! Lists only mounts that a walk would reach, not a mount that another one covers. Bind mounts are
//! listed like all others; their device may equal that of the parent directory.

use super::dir::real_path;
use std::{
    ffi::OsString,
    fs, io,
    os::unix::{
        ffi::{OsStrExt, OsStringExt},
        fs::MetadataExt,
    },
    path::{Path, PathBuf},
};

/// A file system, mounted at one path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileSystemMount {
    /// Mount point, absolute.
    pub path: PathBuf,
    /// Device of the objects in it, as in [`crate::dir::Stat::dev`]. Differs on file
    /// systems that number their subvolumes themselves (btrfs).
    pub device: u64,
    /// Type of the file system: `ext4`, `proc`, `fuse.sshfs`.
    pub kind: String,
}

/// Returns a text that identifies the file system of a path: of most file systems the same after they were mounted again, and another
/// one for each disk. Where the file system has no number of its own, that of its device, which may change at a restart.
///
/// # Errors
/// The system's.
pub fn file_system_id(path: &Path) -> io::Result<String> {
    let own = rustix::fs::statvfs(path)?.f_fsid;
    if own != 0 {
        return Ok(format!("{own:016x}"));
    }
    Ok(format!("device {:x}", fs::metadata(path)?.dev()))
}

/// File systems that show the state of the kernel and hold no files.
const PSEUDO: [&str; 20] = [
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "efivarfs",
    "fusectl",
    "hugetlbfs",
    "mqueue",
    "nsfs",
    "proc",
    "pstore",
    "rpc_pipefs",
    "securityfs",
    "selinuxfs",
    "sysfs",
    "tracefs",
];

/// Returns whether `kind` is a file system without files to back up. `tmpfs` is not one: users keep
/// files there.
pub fn is_pseudo(kind: &str) -> bool {
    PSEUDO.contains(&kind)
}

/// Returns whether `kind` mounts file systems on access. Listing such a directory is harmless;
/// opening its entries is not.
pub fn is_automount(kind: &str) -> bool {
    kind == "autofs"
}

/// Returns the mounts strictly below `path`, ascending by path. Of several mounts on one directory
/// only the topmost is returned.
///
/// Symbolic links in `path` are resolved first.
///
/// # Errors
/// `path` does not exist, or `/proc` is not mounted.
pub fn mounts_below(path: &Path) -> io::Result<Vec<FileSystemMount>> {
    let top = real_path(path)?;
    let mut mounts = visible(&parse(&fs::read("/proc/self/mountinfo")?));
    mounts.retain(|mount| mount.path != top && mount.path.starts_with(&top));
    mounts.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(mounts)
}

/// Returns the device of the file system that holds the absolute, real `path`, and the path within
/// that file system. Both are the same through all bind mounts.
///
/// # Errors
/// `/proc` is not mounted.
pub fn path_in_file_system(path: &Path) -> io::Result<(u64, PathBuf)> {
    let lines = parse(&fs::read("/proc/self/mountinfo")?);
    place_in(&lines, path).ok_or_else(|| io::ErrorKind::NotFound.into())
}

fn place_in(lines: &[MountLine], path: &Path) -> Option<(u64, PathBuf)> {
    let around = lines
        .iter()
        .filter(|line| path.starts_with(&line.mount.path));
    // Of several mounts on one directory the last one is visible.
    let mount = around.max_by_key(|line| line.mount.path.as_os_str().len())?;
    let below = path.strip_prefix(&mount.mount.path).ok()?;
    Some((mount.mount.device, mount.root.join(below)))
}

/// One line of the table: the mount, its number, and the number of its parent mount.
#[derive(Debug, Clone)]
struct MountLine {
    id: u32,
    parent: u32,
    /// The directory of the file system that is mounted.
    root: PathBuf,
    mount: FileSystemMount,
}

fn parse(table: &[u8]) -> Vec<MountLine> {
    table
        .split(|c| *c == b'\n')
        .filter_map(parse_line)
        .collect()
}

/// Parses a line such as `36 35 98:0 /root /mnt\040point rw,noatime shared:1 - ext4 /dev/sda1 rw`,
/// see proc_pid_mountinfo(5). The number of optional fields before the dash varies.
fn parse_line(line: &[u8]) -> Option<MountLine> {
    let fields: Vec<&[u8]> = line.split(|c| *c == b' ').collect();
    let dash = fields.iter().skip(6).position(|field| *field == b"-")? + 6;
    let path = OsString::from_vec(unescape(fields[4]));
    Some(MountLine {
        id: number(fields[0])?,
        parent: number(fields[1])?,
        root: OsString::from_vec(unescape(fields[3])).into(),
        mount: FileSystemMount {
            path: path.into(),
            device: device(fields[2])?,
            kind: String::from_utf8_lossy(fields.get(dash + 1)?).into_owned(),
        },
    })
}

fn number(field: &[u8]) -> Option<u32> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

/// Returns `98:0` as one number.
fn device(field: &[u8]) -> Option<u64> {
    let colon = field.iter().position(|c| *c == b':')?;
    Some(rustix::fs::makedev(
        number(&field[..colon])?,
        number(&field[colon + 1..])?,
    ))
}

/// Decodes the escapes of the kernel, which writes space, tab, newline and backslash as three octal
/// digits: `\040`.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let octal = tail.get(..3).filter(|_| *first == b'\\').and_then(octal);
        plain.push(octal.unwrap_or(*first));
        rest = if octal.is_some() { &tail[3..] } else { tail };
    }
    plain
}

fn octal(digits: &[u8]) -> Option<u8> {
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()
}

fn visible(lines: &[MountLine]) -> Vec<FileSystemMount> {
    lines
        .iter()
        .filter(|line| !lines.iter().any(|other| hides(other, line, lines)))
        .map(|line| line.mount.clone())
        .collect()
}

/// Returns whether mount `upper` covers `line`, or a mount or directory on the path to `line`.
fn hides(upper: &MountLine, line: &MountLine, lines: &[MountLine]) -> bool {
    let mut below = line;
    // A table has no cycle, but a file that is read while it changes may: take at most as many
    // steps as lines.
    for _ in 0..lines.len() {
        if upper.id == below.id {
            return false;
        }
        if upper.parent == below.id && upper.mount.path == below.mount.path {
            return true;
        }
        if upper.parent == below.parent && is_below(&below.mount.path, &upper.mount.path) {
            return true;
        }
        match lines
            .iter()
            .find(|parent| parent.id == below.parent && parent.id != below.id)
        {
            Some(parent) => below = parent,
            None => return false,
        }
    }
    false
}

fn is_below(path: &Path, top: &Path) -> bool {
    path.as_os_str().as_bytes() != top.as_os_str().as_bytes() && path.starts_with(top)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(table: &str) -> Vec<(String, String)> {
        let mounts = visible(&parse(table.as_bytes()));
        mounts
            .into_iter()
            .map(|mount| (mount.path.to_string_lossy().into_owned(), mount.kind))
            .collect()
    }

    #[test]
    fn a_path_has_one_place_through_all_bind_mounts() {
        let table = "20 1 8:1 / / rw - ext4 /dev/a rw\n21 20 8:2 / /srv rw - ext4 /dev/b rw\n22 20 8:2 /data/x /mnt/x rw - ext4 /dev/b rw\n";
        let lines = parse(table.as_bytes());
        let place = |path: &str| place_in(&lines, Path::new(path)).unwrap();
        assert_eq!(place("/mnt/x/y"), place("/srv/data/x/y"));
        assert_eq!(place("/mnt/x"), place("/srv/data/x"));
        assert_ne!(place("/mnt/y"), place("/srv/mnt/y"));
    }

    #[test]
    fn escapes_in_the_mount_table_are_undone() {
        let table = "36 35 98:3 / /mnt\\040a\\134b\\011c rw,noatime master:1 shared:2 - ext3 /dev/root rw\n";
        let mount = &parse(table.as_bytes())[0].mount;
        assert_eq!(mount.path.as_os_str(), "/mnt a\\b\tc");
        assert_eq!(
            (mount.device, &*mount.kind),
            (rustix::fs::makedev(98, 3), "ext3")
        );
        assert_eq!(unescape(b"\\04"), b"\\04");
        assert_eq!(unescape(b"\\999"), b"\\999");
    }

    #[test]
    fn malformed_lines_of_the_mount_table_are_ignored() {
        assert!(
            parse(b"\nnonsense\n1 2 3\n1 2 x:y / /a rw - ext4 d rw\n1 2 3:4 / /a rw\n").is_empty()
        );
    }

    #[test]
    fn only_the_topmost_of_stacked_mounts_is_seen() {
        let table =
            "1 0 8:1 / / rw - ext4 d rw\n2 1 8:2 / /m rw - ext4 d rw\n3 2 8:3 / /m rw - xfs d rw\n";
        assert_eq!(
            paths(table),
            [("/".into(), "ext4".into()), ("/m".into(), "xfs".into())]
        );
    }

    #[test]
    fn a_mount_inside_a_covered_one_is_not_seen() {
        let table = "1 0 8:1 / / rw - ext4 d rw\n2 1 8:2 / /m rw - ext4 d rw\n4 2 8:4 / /m/in rw - ext4 d rw\n\
                     3 2 8:3 / /m rw - xfs d rw\n5 3 8:5 / /m/in rw - tmpfs d rw\n";
        let seen: Vec<String> = paths(table)
            .into_iter()
            .map(|(path, kind)| format!("{path} {kind}"))
            .collect();
        assert_eq!(seen, ["/ ext4", "/m xfs", "/m/in tmpfs"]);
    }

    #[test]
    fn a_mount_over_a_directory_hides_the_mounts_in_that_directory() {
        let table = "1 0 8:1 / / rw - ext4 d rw\n2 1 8:2 / /a/b rw - ext4 d rw\n3 1 8:3 / /a rw - xfs d rw\n";
        let seen: Vec<String> = paths(table).into_iter().map(|(path, _)| path).collect();
        assert_eq!(seen, ["/", "/a"]);
    }

    #[test]
    fn the_kernels_own_file_systems_are_found_below_the_root_and_are_pseudo() {
        let mounts = mounts_below(Path::new("/")).unwrap();
        let proc = mounts
            .iter()
            .find(|mount| mount.path == Path::new("/proc"))
            .unwrap();
        assert!(is_pseudo(&proc.kind));
        assert!(is_pseudo("tracefs") && !is_pseudo("tmpfs") && !is_pseudo("ext4"));
        assert!(mounts_below(Path::new("/proc/self/fd")).unwrap().is_empty());
    }
}
