//! The PATHs that a backup is of: what each of them is, and its name in the backup.
//!
//! A PATH is called as the user named it, from `/` on. A link in it is followed, but where the link leads is no part of the
//! name: a backup of `current`, which leads to another release each week, is one of the same source each week. Where the whole
//! path is its name in the backup, the directories above it are those where it really is, and only its last name may be that of
//! a link: a restore would put directories in the place of the other links, and what else is below them would be out of reach.

use crate::{
    error::{Error, ErrorKind, Result, quoted},
    format::entry::{EntryPath, is_within, order},
    platform::{dir, write::is_in_the_way},
};
use std::{
    fs::{FileType, Metadata},
    io,
    os::unix::{ffi::OsStrExt, fs::FileTypeExt},
    path::{Component, Path, PathBuf},
};

/// The output of a program is no file that could be looked at before it is read.
const STREAM_HINT: &str =
    "give the output of a program to standard input: `… | fullbore backup --stdin-name NAME`";

/// A PATH, looked at once: another answer later would be about something else.
pub(crate) struct FoundPath {
    /// As it was named, from `/` on.
    pub(crate) name: PathBuf,
    /// A directory without the links that lead there; anything else as it was named.
    pub(crate) real: PathBuf,
    pub(crate) is_dir: bool,
    /// A warning if less of it is stored than the user may expect.
    warning: Option<String>,
}

/// A PATH, and its name in the backup.
pub(crate) struct NamedPath {
    pub(crate) at: EntryPath,
    /// What the source is called, from `/` on.
    pub(crate) name: PathBuf,
    pub(crate) place: FoundPath,
}

impl FoundPath {
    /// Looks at a PATH.
    ///
    /// # Errors
    /// [`Kind::NotFound`] if it leads nowhere, [`Kind::Unsupported`] if it leads to something without content that could be
    /// read, as a pipe; the system's: what cannot be looked at now may be a directory.
    pub(crate) fn of(path: &Path) -> Result<Self> {
        let failed = |e| Error::io(format!("could not read {path:?}"), e);
        let name = absolute(path).map_err(failed)?;
        let there = name.symlink_metadata().map_err(failed).map_err(|error| {
            match path.as_os_str().as_bytes() {
                b"-" => error.hint(
                    "standard input is backed up as a file with a name: use --stdin-name NAME",
                ),
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

    /// Its whole path, with the directories above it where they really are.
    fn whole_path(&self) -> Result<PathBuf> {
        let (Some(parent), Some(last)) = (self.name.parent(), self.name.file_name()) else {
            return Ok(self.name.clone());
        };
        let real = dir::real_path(parent)
            .map_err(|e| Error::io(format!("could not read {parent:?}"), e))?;
        Ok(real.join(last))
    }

    /// Its last name. A link has its own, not that of what it leads to.
    fn last_name(&self) -> Result<EntryPath> {
        self.name
            .file_name()
            .map(|name| name.as_bytes().to_vec())
            .ok_or_else(|| {
                Error::new(ErrorKind::Usage, "cannot store \"/\" beside other paths")
                    .hint("back it up by itself")
            })
    }
}

/// A warning if less of a PATH is stored than the user may expect. If it cannot be backed up at all, the backup says so.
pub fn warning_of(path: &Path) -> Option<String> {
    FoundPath::of(path).ok()?.warning
}

/// The name of the source that a PATH is, whether it is there or not.
///
/// # Errors
/// The system's, if there is no current directory.
pub fn source_path(path: &Path) -> Result<PathBuf> {
    let failed = |e| Error::io(format!("could not find out where {path:?} is"), e);
    // Where a directory before a `..` is not there, it was none that a link leads to, as far as is known.
    absolute(path)
        .or_else(|_| std::path::absolute(path))
        .map_err(failed)
}

/// A PATH from `/` on, as it was named, without `.`. A `..` leads out of the directory that the part before it really is.
fn absolute(path: &Path) -> io::Result<PathBuf> {
    let whole = std::path::absolute(path)?;
    let parts: Vec<Component<'_>> = whole.components().collect();
    let Some(last) = parts.iter().rposition(|part| *part == Component::ParentDir) else {
        return Ok(parts.iter().collect());
    };
    let above: PathBuf = parts[..=last].iter().collect();
    let mut name = dir::real_path(&above)?;
    name.extend(&parts[last + 1..]);
    Ok(name)
}

/// Follows a link.
///
/// # Errors
/// [`Kind::NotFound`] if it leads nowhere, or the system's.
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
        let what =
            format!("could not read {path:?}: it is a link to {target:?}, which is not there");
        Error::new(ErrorKind::NotFound, what).hint("is the disk mounted that it leads to?")
    })
}

/// The kind of an object that is neither a directory nor a file, in words.
fn special(kind: FileType) -> Option<&'static str> {
    match () {
        () if kind.is_fifo() => Some("a pipe"),
        () if kind.is_socket() => Some("a socket"),
        () if kind.is_char_device() => Some("a character device"),
        () if kind.is_block_device() => Some("a block device"),
        () => None,
    }
}

/// Refuses a PATH without content that could be read. Of a block device the node is worth storing, but of a link to one only the
/// link would be stored.
fn check_kind(path: &Path, is_link: bool, kind: FileType) -> Result<()> {
    let Some(thing) = special(kind).filter(|_| is_link || !kind.is_block_device()) else {
        return Ok(());
    };
    let how = if is_link { "leads to" } else { "is" };
    let error = Error::new(
        ErrorKind::Unsupported,
        format!("cannot back up {path:?}: it {how} {thing}"),
    );
    Err(match kind.is_block_device() {
        true => error.hint("name the device itself to store its node; `--stdin-name NAME < DEVICE` stores its content"),
        false => error.hint(STREAM_HINT),
    })
}

fn warning(path: &Path, name: &Path, is_link: bool, kind: FileType) -> Option<String> {
    if kind.is_block_device() {
        return Some(format!(
            "{path:?} is a block device, and only its node is stored: `--stdin-name NAME < {}` stores its content",
            path.display()
        ));
    }
    let target = name
        .read_link()
        .ok()
        .filter(|_| is_link && kind.is_file())?;
    let is = "is a link, and is stored as one: what it leads to is not in the backup, but by its own name";
    Some(format!("{path:?} {is}, {target:?}"))
}

/// The PATHs with their names in the backup, ascending, whatever their order was. One directory alone is the root itself.
///
/// # Errors
/// [`Kind::Usage`] if two would have one name; those of [`FoundPath::of`].
pub(crate) fn named(paths: &[PathBuf], full_paths: bool) -> Result<Vec<NamedPath>> {
    let is_alone = paths.len() == 1;
    let mut named = Vec::new();
    for path in paths {
        let place = FoundPath::of(path)?;
        let name = if full_paths {
            place.whole_path()?
        } else {
            place.name.clone()
        };
        let at = match full_paths {
            true => name.as_os_str().as_bytes()[1..].to_vec(),
            false if is_alone && place.is_dir => EntryPath::new(),
            false => place.last_name()?,
        };
        named.push(NamedPath { at, name, place });
    }
    named.sort_by(|a, b| order(&a.at, &b.at));
    named.dedup_by(|b, a| a.at == b.at && a.name == b.name);
    for pair in named.windows(2) {
        if is_within(&pair[1].at, &pair[0].at) && !full_paths {
            let what = format!("cannot store two paths as {}", quoted(&pair[1].at));
            let (a, b) = (pair[0].name.display(), pair[1].name.display());
            return Err(Error::new(ErrorKind::Usage, what)
                .detail(format!("\"{a}\" and \"{b}\" have the same last name"))
                .hint("use --full-paths, so that each is stored under its whole path"));
        }
    }
    Ok(named)
}

/// PATHs that are links to directories, and stand in another PATH: there a directory is stored in the place of the link.
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
