//! A destination as data. This is the only file that names every sink.

use crate::sink::{
    local_file::OneFile,
    sealed::SealedDestination,
    stdout::{Null, Stdout},
};
use crate::{
    tape::{TapeOptions, TapeSpec},
    volumes::{VolumeSizes, VolumeSpec},
};
use fullbore_crypt::UserRecipient;
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_pipeline::{sink::Destination, stage::codec::Codec};
use fullbore_platform::{
    place::{check_parent_exists, quoted_path},
    safe_file::{dangling_symlink_target, symlink_target},
};
use fullbore_repository::{
    first_look::FirstLook,
    volume_series::VolumeSeries,
    writer::{RepositoryWriter, is_absent, must_be_possible},
};
use fullbore_storage::{LocalObjects, Location, Objects, Storages, foreign_words::refuse_foreign};
use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::Arc,
};

/// A description of a destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SinkSpec {
    /// A repository, or a place that will become one.
    Repository(OpenStorage),
    /// One file.
    File(PathBuf),
    /// A series of volumes.
    Volumes(VolumeSpec),
    /// Tapes in a drive.
    Tape(TapeSpec),
    /// Standard output.
    Stdout,
    /// Nowhere (`null:`).
    Null,
    /// One file or standard output, encrypted.
    Sealed(Box<SinkSpec>, Recipients),
}

/// The people who can open an archive. Two are equal if their names are.
#[derive(Debug, Clone)]
pub struct Recipients(pub Arc<[UserRecipient]>);

impl Recipients {
    fn names(&self) -> Vec<String> {
        self.0.iter().map(UserRecipient::to_string).collect()
    }
}

impl PartialEq for Recipients {
    fn eq(&self, other: &Self) -> bool {
        self.names() == other.names()
    }
}

impl Eq for Recipients {}

/// A storage that is open. Two are equal if they are called the same.
#[derive(Debug, Clone)]
pub struct OpenStorage(pub Arc<dyn Objects>);

impl OpenStorage {
    /// A directory of this machine.
    pub fn local(path: &Path) -> Self {
        Self(Arc::new(LocalObjects::new(path)))
    }
}

impl PartialEq for OpenStorage {
    fn eq(&self, other: &Self) -> bool {
        self.0.describe("") == other.0.describe("")
    }
}

impl Eq for OpenStorage {}

/// Endings of archive names, and the codec of each.
const ENDINGS: [(&str, Codec); 6] = [
    (".tar.zst", Codec::Zstd(1)),
    (".tzst", Codec::Zstd(1)),
    (".tar.lz4", Codec::Lz4),
    (".tar.gz", Codec::Gzip(6)),
    (".tgz", Codec::Gzip(6)),
    (".tar", Codec::Tar),
];

/// The ending of an archive that is encrypted, after that of its content.
pub const SEALED_ENDING: &str = ".age";

/// Endings that suggest a single file, although fullbore would create a repository of that name.
const FOREIGN: [&str; 15] = [
    ".tar.zst", ".tzst", ".tar.lz4", ".tgz", ".tar", ".tar.xz", ".txz", ".tar.bz2", ".tbz2",
    ".zst", ".lz4", ".gz", ".xz", ".bz2", ".zip",
];

const ENDINGS_HINT: &str = "use .tar.zst, .tar.lz4, .tar.gz or .tar, and .age behind that if it is encrypted; for a repository, make a directory of that name first";

impl SinkSpec {
    /// Parses `--to`. Returns the destination and the codec: `compress`, or the codec of the
    /// ending.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if the ending does not match the codec or the destination cannot be
    /// used; [`ErrorKind::NotFound`] for a dangling link.
    pub fn parse(
        storages: &Storages,
        to: impl AsRef<OsStr>,
        compress: Option<Codec>,
    ) -> Result<(Self, Option<Codec>)> {
        let location = Location::parse(to.as_ref())?;
        let target = match &location {
            Location::Standard => return Ok((Self::Stdout, compress.map(Codec::for_pipe))),
            Location::Null => return Ok((Self::Null, compress)),
            Location::Local(path) => path.as_path(),
            Location::Volumes(prefix) => return volumes(storages, prefix, compress),
            Location::Tape(drive) => return tape(storages, drive, compress),
            _ => {
                refuse_remote_archive(&location, to.as_ref())?;
                return repository_codec(storages, &location, compress);
            }
        };
        let bytes = target.as_os_str().as_bytes();
        if let Some(lost) = dangling_symlink_target(target) {
            let message =
                format!("cannot write to {target:?}: it is a link to {lost:?}, which is not there");
            return Err(Error::new(ErrorKind::NotFound, message));
        }
        if target.is_dir() {
            return repository_codec(storages, &location, compress);
        }
        check_destination_path(target)?;
        let content = bytes
            .strip_suffix(SEALED_ENDING.as_bytes())
            .unwrap_or(bytes);
        let ending = ENDINGS
            .iter()
            .find(|(ending, _)| content.ends_with(ending.as_bytes()));
        if let Some((ending, asked)) = ending {
            let codec = codec_for_ending(ending, *asked, compress)?;
            // The commit renames a file over this name, which would replace the link itself.
            let file = symlink_target(target).unwrap_or_else(|| target.into());
            return Ok((Self::File(file), Some(codec)));
        }
        // Such a name is meant for an archive, and would become a directory.
        let lower = content.to_ascii_lowercase();
        if FOREIGN
            .iter()
            .any(|ending| lower.ends_with(ending.as_bytes()))
        {
            let message = format!("cannot write to {target:?}: archives have other endings");
            return Err(Error::new(ErrorKind::Usage, message).hint(ENDINGS_HINT));
        }
        repository_codec(storages, &location, compress)
    }

    /// Returns whether this is a repository that does not exist yet.
    pub fn is_new_repository(&self) -> bool {
        matches!(self, Self::Repository(OpenStorage(objects)) if is_absent(&**objects))
    }

    /// The storage, if this is a repository.
    pub fn storage(&self) -> Option<&Arc<dyn Objects>> {
        match self {
            Self::Repository(OpenStorage(objects)) => Some(objects),
            _ => None,
        }
    }

    /// The volumes, if the backup becomes a series of them.
    pub fn volumes(&self) -> Option<&VolumeSpec> {
        match self {
            Self::Volumes(spec) => Some(spec),
            Self::Sealed(inner, _) => inner.volumes(),
            _ => None,
        }
    }

    /// The drive, if the backup goes to tapes.
    pub fn tape(&self) -> Option<&TapeSpec> {
        match self {
            Self::Tape(spec) => Some(spec),
            Self::Sealed(inner, _) => inner.tape(),
            _ => None,
        }
    }

    /// Returns whether segments end at members that do not fit, and each has a root.
    pub fn is_in_volumes(&self) -> bool {
        self.volumes().is_some() || self.tape().is_some()
    }

    /// Makes choices about tapes.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if there are choices and no drive.
    pub fn with_tape_options(mut self, options: TapeOptions) -> Result<Self> {
        match &mut self {
            Self::Tape(spec) => spec.options = options,
            _ if options.is_default() => {}
            _ => {
                let message = "--overwrite, --append, --expires, --part-size and --tape-buffer need --to tape:DRIVE";
                return Err(Error::new(ErrorKind::Usage, message));
            }
        }
        Ok(self)
    }

    /// Gives the volumes these sizes.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if there are no sizes for volumes, or sizes without volumes.
    pub fn with_volume_sizes(mut self, sizes: Option<VolumeSizes>) -> Result<Self> {
        let word = match (&mut self, sizes) {
            (Self::Volumes(spec), Some(sizes)) => {
                spec.sizes = sizes;
                return Ok(self);
            }
            (Self::Volumes(_), None) => "volumes: needs --volume-size, such as 25G or auto",
            (_, Some(_)) => "--volume-size needs --to volumes:PREFIX",
            (_, None) => return Ok(self),
        };
        Err(Error::new(ErrorKind::Usage, word))
    }

    /// Is it standard output?
    pub fn is_stdout(&self) -> bool {
        match self {
            Self::Stdout => true,
            Self::Sealed(inner, _) => inner.is_stdout(),
            _ => false,
        }
    }

    /// Does a stream of unknown length have to be read to its end before it is stored? Otherwise its header is amended.
    pub fn spools(&self) -> bool {
        matches!(
            self,
            Self::Stdout | Self::Sealed(..) | Self::Volumes(_) | Self::Tape(_)
        )
    }

    /// Checks that the destination can be created. With `no_create` it must be an existing
    /// repository.
    ///
    /// # Errors
    /// As [`must_be_possible`]; [`ErrorKind::Permission`] without a key of an encrypted repository; [`ErrorKind::Usage`] for `no_create` with another kind of
    /// destination.
    pub fn check(&self, no_create: bool) -> Result<()> {
        match self {
            Self::Repository(OpenStorage(objects)) => {
                // Before a server is told that a backup begins.
                if let Some(sealed) = objects.as_sealed() {
                    sealed.check_writable()?;
                }
                must_be_possible(&**objects, no_create)
            }
            _ if no_create => Err(Error::new(
                ErrorKind::Usage,
                format!(
                    "--no-create can be used with repositories only, not with {}",
                    self.name()
                ),
            )),
            Self::File(path) => check_parent_exists(path),
            Self::Volumes(spec) => spec.check(),
            Self::Stdout | Self::Null | Self::Tape(_) => Ok(()),
            Self::Sealed(inner, _) => inner.check(no_create),
        }
    }

    /// Opens the destination for backup `id` of `host`, started at `time`, after a look at the repository.
    ///
    /// # Errors
    /// Those of the destination.
    pub fn open(
        &self,
        host: &str,
        id: &str,
        time: &str,
        codec: Codec,
        look: &FirstLook,
    ) -> Result<Box<dyn Destination>> {
        Ok(match self {
            Self::Repository(OpenStorage(objects)) => {
                let objects = objects.clone();
                Box::new(RepositoryWriter::begin_after(
                    look,
                    objects,
                    host,
                    id,
                    time,
                    codec.suffix(),
                )?)
            }
            Self::File(path) => Box::new(OneFile::create(path, id)?),
            Self::Volumes(spec) => Box::new(spec.open(id, None)?),
            Self::Tape(spec) => Box::new(spec.open(id, None)?),
            Self::Stdout => Box::new(Stdout::begin()?),
            Self::Sealed(inner, Recipients(recipients)) => match &**inner {
                Self::Volumes(spec) => Box::new(spec.open(id, Some(recipients.clone()))?),
                Self::Tape(spec) => Box::new(spec.open(id, Some(recipients.clone()))?),
                inner => Box::new(SealedDestination::new(
                    inner.open(host, id, time, codec, look)?,
                    recipients.clone(),
                )),
            },
            Self::Null => Box::new(Null),
        })
    }

    /// Returns the words about the destination in the last line of the output.
    pub fn completion_text(&self) -> String {
        match self {
            Self::Repository(_) | Self::File(_) | Self::Volumes(_) | Self::Tape(_) => {
                format!("is complete in {}", self.name())
            }
            Self::Stdout => "is complete on standard output".to_owned(),
            Self::Sealed(inner, _) => format!("{}, encrypted", inner.completion_text()),
            Self::Null => "was stored nowhere, as asked".to_owned(),
        }
    }

    /// Name in messages.
    pub fn name(&self) -> String {
        match self {
            Self::Repository(OpenStorage(objects)) => objects.describe(""),
            Self::File(path) => quoted_path(path),
            Self::Volumes(spec) => spec.name(),
            Self::Tape(spec) => spec.name(),
            Self::Stdout => "standard output".to_owned(),
            Self::Sealed(inner, _) => inner.name(),
            Self::Null => "nowhere".to_owned(),
        }
    }
}

/// Returns a series of volumes as a destination. Their codec is that of archives by default.
fn volumes(
    storages: &Storages,
    prefix: &Path,
    compress: Option<Codec>,
) -> Result<(SinkSpec, Option<Codec>)> {
    let codec = codec_of_volumes(compress, "into volumes")?;
    let spec = VolumeSpec {
        prefix: prefix.to_owned(),
        sizes: VolumeSizes::endless(),
        change: storages.media_change().clone(),
        catalog: VolumeSeries::of(storages, prefix),
    };
    Ok((SinkSpec::Volumes(spec), Some(codec)))
}

/// Returns tapes as a destination.
fn tape(
    storages: &Storages,
    drive: &OsStr,
    compress: Option<Codec>,
) -> Result<(SinkSpec, Option<Codec>)> {
    if drive.is_empty() {
        let message = "cannot write to \"tape:\": it names no drive";
        return Err(Error::new(ErrorKind::Usage, message).hint("a drive is tape:/dev/nst0"));
    }
    let codec = codec_of_volumes(compress, "to tapes")?;
    Ok((SinkSpec::Tape(TapeSpec::new(storages, drive)), Some(codec)))
}

/// Returns the codec of archives that are read one by one, which has frames that other programs skip.
fn codec_of_volumes(compress: Option<Codec>, place: &str) -> Result<Codec> {
    let codec = compress.unwrap_or(Codec::Zstd(1));
    if codec.suffix() == Codec::Zstd(1).suffix() {
        return Ok(codec);
    }
    let message = format!("cannot write {} {place}", codec.name());
    Err(Error::new(ErrorKind::Usage, message).hint("use --compress zstd, auto or none"))
}

/// Refuses the name of an archive: object stores and other hosts have repositories only.
fn refuse_remote_archive(location: &Location, to: &OsStr) -> Result<()> {
    let lower = to.as_bytes().to_ascii_lowercase();
    if !FOREIGN
        .iter()
        .any(|ending| lower.ends_with(ending.as_bytes()))
    {
        return Ok(());
    }
    let message = format!("cannot write to {location}: archives are files of this machine");
    Err(Error::new(ErrorKind::Usage, message).hint(
        "a repository has another name; `--to -` writes an archive to the program that uploads it",
    ))
}

/// Returns a repository as a destination. Its segments need frames that can be skipped.
fn repository_codec(
    storages: &Storages,
    to: &Location,
    compress: Option<Codec>,
) -> Result<(SinkSpec, Option<Codec>)> {
    if let Some(codec) = compress.filter(|codec| codec.is_plain_stream()) {
        let message = format!("cannot write {} into a repository", codec.name());
        return Err(Error::new(ErrorKind::Usage, message).hint(
            "use --compress zstd, lz4 or none; for other programs write a file whose name ends in .tar.gz",
        ));
    }
    let objects = storages.objects(to)?;
    Ok((SinkSpec::Repository(OpenStorage(objects)), compress))
}

/// Refuses a path that can be neither a file nor a repository.
fn check_destination_path(to: &Path) -> Result<()> {
    if is_special_file(to) {
        let message =
            format!("cannot write to {to:?}: it is neither a directory nor a regular file");
        return Err(Error::new(ErrorKind::Usage, message)
            .hint("use \"-\" for standard output, and \"null:\" to discard the output"));
    }
    refuse_foreign("write to", to)
}

/// Returns the codec for a file name with this ending, whose own codec is `asked`.
fn codec_for_ending(ending: &str, asked: Codec, compress: Option<Codec>) -> Result<Codec> {
    let codec = match compress {
        Some(Codec::None) if asked == Codec::Tar => Codec::Tar,
        Some(codec) => codec,
        None => asked,
    };
    if codec.suffix() == asked.suffix() {
        return Ok(codec);
    }
    let message = format!(
        "cannot write {} into a file whose name ends in {ending:?}",
        codec.name()
    );
    Err(Error::new(ErrorKind::Usage, message).hint(ENDINGS_HINT))
}

/// Returns whether the path is a device, a pipe or a socket.
fn is_special_file(to: &Path) -> bool {
    std::fs::metadata(to).is_ok_and(|found| !found.is_dir() && !found.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations_are_known_by_their_names() {
        let parse = |target| SinkSpec::parse(&Storages::default(), target, None).unwrap();
        assert_eq!(parse("-").0, SinkSpec::Stdout);
        assert_eq!(parse("null:").0, SinkSpec::Null);
        assert_eq!(
            parse("/x/a.tar.lz4"),
            (SinkSpec::File("/x/a.tar.lz4".into()), Some(Codec::Lz4))
        );
        for directory in ["/x/a", "/x/a.tar.zst/", "/x/a.zstd", "/x/tar"] {
            assert_eq!(
                parse(directory),
                (
                    SinkSpec::Repository(OpenStorage::local(Path::new(directory))),
                    None
                )
            );
        }
        let zstd = SinkSpec::parse(&Storages::default(), "a.tzst", Some(Codec::Zstd(9))).unwrap();
        assert_eq!(
            zstd,
            (SinkSpec::File("a.tzst".into()), Some(Codec::Zstd(9)))
        );
        for name in [
            "a.TAR.ZST",
            "a.tar.xz",
            "a.zst",
            "a.sql.gz",
            "a.zip",
            "/tmp/a.Tar",
        ] {
            assert_eq!(
                SinkSpec::parse(&Storages::default(), name, None)
                    .unwrap_err()
                    .kind,
                ErrorKind::Usage,
                "{name}"
            );
        }
        for (name, codec) in [
            ("a.tar.zst", Codec::Lz4),
            ("a.tar", Codec::Zstd(1)),
            ("a.tgz", Codec::None),
            ("a", Codec::Gzip(6)),
            ("a/", Codec::Gzip(6)),
        ] {
            assert_eq!(
                SinkSpec::parse(&Storages::default(), name, Some(codec))
                    .unwrap_err()
                    .kind,
                ErrorKind::Usage,
                "{name}"
            );
        }
    }
}
