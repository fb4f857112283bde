//! The description of a run as data. This is the only file that names every stage and sink.

use crate::sink::{
    local_file::OneFile,
    sealed::SealedDestination,
    stdout::{Null, Stdout},
};
use fullbore_crypt::UserRecipient;
use fullbore_format::{
    digest::Algorithm,
    error::{Error, ErrorKind, Result},
    text::binary_bytes,
};
use fullbore_pipeline::{
    frame::Pool,
    read_ahead::{MAX_WINDOW_BYTES, WindowLimits},
    sink::Destination,
    stage::{
        Chain, Stage,
        codec::{Codec, Compress},
        digest::DigestStage,
        level::{CompressAuto, LevelDial},
        thin::Thin,
    },
    thread_count::max_threads,
};
use fullbore_platform as platform;
use fullbore_platform::{
    place::{check_parent_exists, quoted_path},
    safe_file::{dangling_symlink_target, symlink_target},
};
use fullbore_postgres::page_stage::{PageCheck, PageChecks};
use fullbore_repository::{
    first_look::FirstLook,
    writer::{RepositoryWriter, is_absent, must_be_possible},
};
use fullbore_storage::{LocalObjects, Location, Objects, Storages, foreign_words::refuse_foreign};
use std::{
    ffi::OsStr,
    num::NonZeroUsize,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::Arc,
};

/// A description of a stage; building the stage needs no other data.
#[derive(Debug, Clone)]
pub enum StageSpec {
    /// Computes digests.
    Digest {
        /// Digest algorithm.
        algorithm: Algorithm,
        /// Bytes of a block.
        block_bytes: u64,
        /// Whether large files are also cut in chunks by their content.
        chunks: bool,
        /// Whether CRC-32Cs of the blocks are needed.
        crc32c: bool,
    },
    /// Removes content that earlier backups have.
    Thin {
        /// Bytes of a block.
        block_bytes: u64,
    },
    /// Checks the checksums of PostgreSQL's pages.
    Pages(Arc<PageCheck>),
    /// Compresses.
    Compress {
        /// Codec and level.
        codec: Codec,
    },
    /// Compresses each frame at the level of this dial.
    CompressAuto(Arc<LevelDial>),
}

impl StageSpec {
    /// Builds the stage on this machine.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if the codec does not have this level.
    pub fn build(&self, pool: &Arc<Pool>) -> Result<Box<dyn Stage>> {
        Ok(match *self {
            Self::Digest {
                algorithm,
                block_bytes: block,
                chunks,
                crc32c,
            } => Box::new(DigestStage {
                algorithm,
                block,
                chunks,
                crc32c,
            }),
            Self::Thin { block_bytes: block } => Box::new(Thin::new(block)),
            Self::Pages(ref check) => Box::new(PageChecks(check.clone())),
            Self::Compress { codec } => Box::new(Compress::new(codec, pool.clone())?),
            Self::CompressAuto(ref dial) => Box::new(CompressAuto::new(dial.clone(), pool.clone())),
        })
    }
}

/// Builds all `stages` as one chain for one worker.
///
/// # Errors
/// As [`StageSpec::build`].
pub fn chain(stages: &[StageSpec], pool: &Arc<Pool>) -> Result<Chain> {
    Ok(Chain(
        stages
            .iter()
            .map(|stage| stage.build(pool))
            .collect::<Result<_>>()?,
    ))
}

/// Returns the same stages with the codec at its fastest level that still compresses.
pub fn at_fast_level(stages: &[StageSpec]) -> Vec<StageSpec> {
    let fast = |stage: &StageSpec| match *stage {
        StageSpec::Compress { codec } => StageSpec::Compress {
            codec: codec.at_fast_level(),
        },
        StageSpec::CompressAuto(_) => StageSpec::Compress {
            codec: Codec::Auto.at_fast_level(),
        },
        ref other => other.clone(),
    };
    stages.iter().map(fast).collect()
}

/// A description of a destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SinkSpec {
    /// A repository, or a place that will become one.
    Repository(OpenStorage),
    /// One file.
    File(PathBuf),
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

impl PartialEq for Recipients {
    fn eq(&self, other: &Self) -> bool {
        let names = |of: &Self| {
            of.0.iter()
                .map(UserRecipient::to_string)
                .collect::<Vec<_>>()
        };
        names(self) == names(other)
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
        let to = match &location {
            Location::Standard => return Ok((Self::Stdout, compress.map(Codec::for_pipe))),
            Location::Null => return Ok((Self::Null, compress)),
            Location::Local(path) => path.as_path(),
            _ => {
                refuse_remote_archive(&location, to.as_ref())?;
                return repository_codec(storages, &location, compress);
            }
        };
        let bytes = to.as_os_str().as_bytes();
        if let Some(lost) = dangling_symlink_target(to) {
            let what =
                format!("cannot write to {to:?}: it is a link to {lost:?}, which is not there");
            return Err(Error::new(ErrorKind::NotFound, what));
        }
        if to.is_dir() {
            return repository_codec(storages, &location, compress);
        }
        check_destination_path(to)?;
        let content = bytes
            .strip_suffix(SEALED_ENDING.as_bytes())
            .unwrap_or(bytes);
        let ending = ENDINGS
            .iter()
            .find(|(ending, _)| content.ends_with(ending.as_bytes()));
        if let Some((ending, asked)) = ending {
            let codec = codec_for_ending(ending, *asked, compress)?;
            let file = symlink_target(to).unwrap_or_else(|| to.into());
            return Ok((Self::File(file), Some(codec)));
        }
        let lower = content.to_ascii_lowercase();
        if FOREIGN
            .iter()
            .any(|ending| lower.ends_with(ending.as_bytes()))
        {
            let what = format!("cannot write to {to:?}: archives have other endings");
            return Err(Error::new(ErrorKind::Usage, what).hint(ENDINGS_HINT));
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
        matches!(self, Self::Stdout | Self::Sealed(..))
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
            Self::Stdout | Self::Null => Ok(()),
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
            Self::Stdout => Box::new(Stdout::begin()?),
            Self::Sealed(inner, Recipients(recipients)) => Box::new(SealedDestination::new(
                inner.open(host, id, time, codec, look)?,
                recipients.clone(),
            )),
            Self::Null => Box::new(Null),
        })
    }

    /// Returns the words about the destination in the last line of the output.
    pub fn completion_text(&self) -> String {
        match self {
            Self::Repository(_) | Self::File(_) => format!("is complete in {}", self.name()),
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
            Self::Stdout => "standard output".to_owned(),
            Self::Sealed(inner, _) => inner.name(),
            Self::Null => "nowhere".to_owned(),
        }
    }
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
    let what = format!("cannot write to {location}: archives are files of this machine");
    Err(Error::new(ErrorKind::Usage, what).hint(
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
        let what = format!("cannot write {} into a repository", codec.name());
        return Err(Error::new(ErrorKind::Usage, what).hint(
            "use --compress zstd, lz4 or none; for other programs write a file whose name ends in .tar.gz",
        ));
    }
    let objects = storages.objects(to)?;
    Ok((SinkSpec::Repository(OpenStorage(objects)), compress))
}

/// Refuses a path that can be neither a file nor a repository.
fn check_destination_path(to: &Path) -> Result<()> {
    if is_special_file(to) {
        let what = format!("cannot write to {to:?}: it is neither a directory nor a regular file");
        return Err(Error::new(ErrorKind::Usage, what)
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
    let what = format!(
        "cannot write {} into a file whose name ends in {ending:?}",
        codec.name()
    );
    Err(Error::new(ErrorKind::Usage, what).hint(ENDINGS_HINT))
}

/// Returns whether the path is a device, a pipe or a socket.
fn is_special_file(to: &Path) -> bool {
    std::fs::metadata(to).is_ok_and(|found| !found.is_dir() && !found.is_file())
}

/// Limits on the resources of a run.
#[derive(Debug, Clone, Copy)]
pub struct Tuning {
    /// Threads that compute.
    pub workers: NonZeroUsize,
    /// Threads that read from each device; `None` adapts the number to the device.
    pub readers: Option<NonZeroUsize>,
    /// Bytes of all buffers together.
    pub memory_bytes: u64,
    /// Plain bytes of a frame: a power of two.
    pub frame_bytes: u32,
    /// Stored bytes of a segment.
    pub segment_bytes: u64,
}

/// The number of frames in a pipeline, so that all of them fit the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Depths {
    /// Processors for computing.
    pub workers: NonZeroUsize,
    /// Threads that may compute at once. More than `workers` if that is all processors, because a
    /// thread may wait for its processor.
    pub permits: NonZeroUsize,
    /// Frames of a stream that are being read, computed or waiting for the sink.
    pub line: usize,
    /// Maximum threads of a stream.
    pub threads: usize,
    /// Limits of the windows in which each stream reads small files ahead.
    pub window: WindowLimits,
}

/// Open files besides those of frames: directories of the walk, the destination, a session.
const OTHER_FILES: u64 = 48;

impl Tuning {
    /// Divides the memory among `streams`.
    ///
    /// A stream holds the frames in its line and one frame in its sink; a worker holds a second
    /// buffer for its output. A quarter of the memory is left for codecs, directories and pages. A
    /// frame may hold two open files (a large one until all of it is stored, a small one while it
    /// is read) and a directory, so the limit of open files limits the frames too.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if one worker does not fit.
    pub fn depths(&self, streams: usize) -> Result<Depths> {
        let streams = streams.max(1);
        let frames = (self.memory_bytes * 3 / 4 / u64::from(self.frame_bytes)) as usize;
        let line = |workers: usize| (frames.saturating_sub(workers) / streams).saturating_sub(1);
        let fits = |workers: &usize| line(*workers) * streams > *workers && line(*workers) >= 2;
        let most = |most: usize| (1..=most).rev().find(fits).and_then(NonZeroUsize::new);
        let workers = most(self.workers.get()).ok_or_else(|| self.too_little_memory(streams))?;
        let permits = if workers < platform::cores() {
            workers
        } else {
            most(2 * workers.get()).unwrap_or(workers)
        };
        let threads = max_threads(workers.get());
        let files =
            (platform::open_files_limit().saturating_sub(OTHER_FILES) / 3) as usize / streams;
        let line = line(permits.get())
            .min(threads + 2 * workers.get() + 2)
            .min(files.max(2));
        Ok(Depths {
            workers,
            permits,
            line,
            threads: threads.min(line),
            window: self.window(streams),
        })
    }

    fn too_little_memory(&self, streams: usize) -> Error {
        let least = (streams as u64 * 3 + 1) * u64::from(self.frame_bytes) * 4 / 3;
        let memory = binary_bytes(self.memory_bytes);
        let what = format!("cannot run with {memory} of memory");
        Error::new(ErrorKind::Usage, what).hint(format!(
            "use --memory of at least {} MiB, or a smaller --frame-size",
            (least >> 20) + 1
        ))
    }
}

/// Memory of one entry in a window, about.
const ENTRY_BYTES: u64 = 512;

impl Tuning {
    /// Returns the limits of a window of each of `streams`, of which there are two. Their entries
    /// take 1/32 of the memory. Their files take at most half of it, in the page cache.
    fn window(&self, streams: usize) -> WindowLimits {
        let share = self.memory_bytes / streams as u64 / 2;
        WindowLimits {
            entries: ((share / 32 / ENTRY_BYTES) as usize).clamp(64, 4096),
            file_bytes: (share / 2).min(MAX_WINDOW_BYTES),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuning(workers: usize, memory_mib: u64) -> Tuning {
        Tuning {
            workers: NonZeroUsize::new(workers).unwrap(),
            readers: None,
            memory_bytes: memory_mib << 20,
            frame_bytes: 1 << 20,
            segment_bytes: 1 << 30,
        }
    }

    #[test]
    fn frames_in_flight_fit_the_memory() {
        for (workers, memory, streams) in [
            (1, 16, 1),
            (2, 128, 1),
            (64, 128, 1),
            (2, 128, 8),
            (16, 1024, 3),
        ] {
            let depths = tuning(workers, memory).depths(streams).unwrap();
            let frames = streams * (depths.line + 1) + depths.permits.get();
            assert!(
                frames as u64 <= memory,
                "{workers} workers, {memory} MiB, {streams} streams: {depths:?}"
            );
        }
        assert_eq!(tuning(2, 128).depths(1).unwrap().workers.get(), 2);
        assert_eq!(tuning(8, 4).depths(1).unwrap_err().kind, ErrorKind::Usage);
    }

    #[test]
    fn destinations_are_known_by_their_names() {
        let parse = |to| SinkSpec::parse(&Storages::default(), to, None).unwrap();
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
