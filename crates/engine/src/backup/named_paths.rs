//! The PATHs of a backup: the kind of each, and its name in the backup.
//!
//! A PATH is named as the user gave it, from `/` on. A link is followed, but its target is not part
//! of the name: a backup of `current`, which points to another release each week, has the same
//! source each week.
//!
//! With full paths, the parent directories are the real ones, and only the last name may be a link.
//! Otherwise a restore would create directories in place of the other links, and hide everything
//! else below their targets.

use fullbore_format::{
    entry::{EntryPath, is_within, order},
    error::{Error, ErrorKind, Result, quoted},
};
use fullbore_platform::{dir, write::is_in_the_way};
use fullbore_storage::foreign_words::{foreign_hint, looks_foreign};
use std::{
    fs::{FileType, Metadata},
    io,
    os::unix::{ffi::OsStrExt, fs::FileTypeExt},
    path::{Component, Path, PathBuf},
};

/// A pipe cannot be examined before it is read.
const STREAM_HINT: &str =
    "give the output of a program to standard input: `… | fullbore backup --stdin-name NAME`";

/// A PATH, examined once: a second look might find another object.
pub(crate) struct FoundPath {
    /// The path as given, from `/` on.
    pub(crate) name: PathBuf,
    /// A directory with all links resolved; other files as given.
    pub(crate) real: PathBuf,
    pub(crate) is_dir: bool,
    /// A warning if less is stored than the user may expect.
    warning: Option<String>,
}

/// A PATH, and its name in the backup.
pub(crate) struct NamedPath {
    pub(crate) at: EntryPath,
    /// The name of the source, from `/` on.
    pub(crate) name: PathBuf,
    pub(crate) place: FoundPath,
}

impl FoundPath {
    /// Examines a PATH.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if it points nowhere, [`ErrorKind::Unsupported`] for an object
    /// without readable content, such as a pipe; errors of the system, because an unreadable path
    /// might be a directory.
    pub(crate) fn of(path: &Path) -> Result<Self> {
        let failed = |e| Error::io(format!("could not read {path:?}"), e);
        let name = absolute(path).map_err(failed)?;
        let there = name.symlink_metadata().map_err(failed).map_err(|error| {
            match path.as_os_str().as_bytes() {
                b"-" => error.hint(
                    "standard input is backed up as a file with a name: use --stdin-name NAME",
                ),
                b"postgres" | b"postgresql" => error.hint("a running cluster is postgres://"),
                b"~" | [b'~', b'/', ..] => error.hint(
                    "in quotes, ~ is a name like any other: write it without them, or \"$HOME\"",
                ),
                _ if looks_foreign(path) => error.hint(foreign_hint(path)),
                _ if error.kind == ErrorKind::NotFound => {
                    error.hint("is its name right, and its disk mounted? Nothing was stored")
                }
                _ => error,
            }
        })?;
        let found = if there.is_symlink() {
            follow(path, &name)?
        } else {
            there.clone()
        };
        check_kind(path, there.is_symlink(), found.file_type())?;
        let warning = warning(path, &name, there.is_symlink(), found.file_type());
        let is_dir = found.is_dir();
        let real = if is_dir {
            dir::real_path(&name).map_err(failed)?
        } else {
            name.clone()
        };
        Ok(Self {
            name,
            real,
            is_dir,
            warning,
        })
    }

    /// Returns the full path, with the real parent directories.
    fn whole_path(&self) -> Result<PathBuf> {
        let (Some(parent), Some(last)) = (self.name.parent(), self.name.file_name()) else {
            return Ok(self.name.clone());
        };
        let real = dir::real_path(parent)
            .map_err(|e| Error::io(format!("could not read {parent:?}"), e))?;
        Ok(real.join(last))
    }

    /// Returns the last name of the path. A link keeps its own name, not that of its target.
    fn last_name(&self) -> Result<EntryPath> {
        self.name
            .file_name()
            .map(|name| name.as_bytes().to_vec())
            .ok_or_else(|| {
                Error::new(
                    ErrorKind::Usage,
                    "cannot store \"/\" together with other paths",
                )
                .hint("back it up alone")
            })
    }
}

/// Returns a warning if less of a PATH is stored than the user may expect. Errors are ignored here,
/// because the backup reports them.
pub fn warning_of(path: &Path) -> Option<String> {
    FoundPath::of(path).ok()?.warning
}

/// Returns the name of the source of a PATH, which need not exist.
///
/// # Errors
/// Errors of the system, if there is no current directory.
pub fn source_path(path: &Path) -> Result<PathBuf> {
    let failed = |e| Error::io(format!("could not make {path:?} absolute"), e);
    // If a directory before a `..` does not exist, it is assumed not to be a link.
    absolute(path)
        .or_else(|_| std::path::absolute(path))
        .map_err(failed)
}

/// Returns the PATH from `/` on, as given, without `.`. A `..` leaves the real directory of the
/// part before it.
fn absolute(path: &Path) -> io::Result<PathBuf> {
    let whole = std::path::absolute(path)?;
    let parts: Vec<Component<'_>> = whole.components().collect();
    let Some(last) = parts.iter().rposition(|part| *part == Component::ParentDir) else {
        return Ok(parts.iter().collect());
    };
    let parent: PathBuf = parts[..=last].iter().collect();
    let mut name = dir::real_path(&parent)?;
    name.extend(&parts[last + 1..]);
    Ok(name)
}

/// Returns the metadata of a link's target.
///
/// # Errors
/// [`ErrorKind::NotFound`] if there is no target, or errors of the system.
fn follow(path: &Path, name: &Path) -> Result<Metadata> {
    name.metadata().map_err(|error| {
        let leads_nowhere = matches!(
            error.kind(),
            io::ErrorKind::NotFound | io::ErrorKind::InvalidFilename
        );
        if !leads_nowhere && !is_in_the_way(&error) {
            return Error::io(format!("could not read {path:?}"), error);
        }
        let target = name.read_link().unwrap_or_default();
        let message =
            format!("could not read {path:?}: it is a link to {target:?}, which does not exist");
        Error::new(ErrorKind::NotFound, message)
            .hint("check whether the disk of the target is mounted")
    })
}

/// Returns the kind of an object that is neither a directory nor a file, in words.
fn special_kind(kind: FileType) -> Option<&'static str> {
    match () {
        () if kind.is_fifo() => Some("a pipe"),
        () if kind.is_socket() => Some("a socket"),
        () if kind.is_char_device() => Some("a character device"),
        () if kind.is_block_device() => Some("a block device"),
        () => None,
    }
}

/// Refuses a PATH without readable content. A block device is stored as a node, but a link to one
/// is refused, because only the link would be stored.
fn check_kind(path: &Path, is_link: bool, kind: FileType) -> Result<()> {
    let Some(thing) = special_kind(kind).filter(|_| is_link || !kind.is_block_device()) else {
        return Ok(());
    };
    let how = if is_link { "points to" } else { "is" };
    let error = Error::new(
        ErrorKind::Unsupported,
        format!("cannot back up {path:?}: it {how} {thing}"),
    );
    Err(if kind.is_block_device() {
        error.hint("name the device itself to store its node; `--stdin-name NAME < DEVICE` stores its content")
    } else {
        error.hint(STREAM_HINT)
    })
}

fn warning(path: &Path, name: &Path, is_link: bool, kind: FileType) -> Option<String> {
    if kind.is_block_device() {
        return Some(format!(
            "only the node of the block device {path:?} is stored: `--stdin-name NAME < {}` stores its content",
            path.display()
        ));
    }
    let target = name
        .read_link()
        .ok()
        .filter(|_| is_link && kind.is_file())?;
    let is =
        "is a link and is stored as a link; to back up the file that it points to, name that file";
    Some(format!("{path:?} {is}, {target:?}"))
}

/// Returns the PATHs with their names in the backup, in ascending order. A single directory becomes
/// the root itself.
///
/// # Errors
/// [`ErrorKind::Usage`] if two PATHs would get the same name; those of [`FoundPath::of`].
pub(crate) fn name_paths(paths: &[PathBuf], full_paths: bool) -> Result<Vec<NamedPath>> {
    let is_alone = paths.len() == 1;
    let mut named = Vec::new();
    for path in paths {
        let place = FoundPath::of(path)?;
        let name = if full_paths {
            place.whole_path()?
        } else {
            place.name.clone()
        };
        let stored_as = match full_paths {
            true => name.as_os_str().as_bytes()[1..].to_vec(),
            false if is_alone && place.is_dir => EntryPath::new(),
            false => place.last_name()?,
        };
        named.push(NamedPath {
            at: stored_as,
            name,
            place,
        });
    }
    named.sort_by(|a, b| order(&a.at, &b.at));
    named.dedup_by(|b, a| a.at == b.at && a.name == b.name);
    // In archive order, if any path is within this one, the next path is: neighbours are enough.
    for pair in named.windows(2) {
        if is_within(&pair[1].at, &pair[0].at) && !full_paths {
            let message = format!("cannot store two paths as {}", quoted(&pair[1].at));
            let a = pair[0].name.display();
            let b = pair[1].name.display();
            return Err(Error::new(ErrorKind::Usage, message)
                .detail(format!("\"{a}\" and \"{b}\" have the same last name"))
                .hint("use --full-paths, which stores each PATH under its full path"));
        }
    }
    Ok(named)
}

/// Returns the PATHs that are links to directories inside another PATH; a directory is stored in
/// place of the link.
pub(crate) fn links_within(named: &[NamedPath]) -> impl Iterator<Item = &NamedPath> {
    let is_within_another = |one: &NamedPath| {
        named
            .iter()
            .any(|outer| outer.at != one.at && is_within(&one.at, &outer.at))
    };
    named
        .iter()
        .filter(move |one| one.place.is_dir && one.name.is_symlink() && is_within_another(one))
}
