//! What to run, as data; and the only file that names every source, stage and sink.

use crate::{
    error::{Error, ErrorKind, Result},
    format::{digest::Algorithm, layout},
    frame::Pool,
    pipeline::{read_ahead::WindowLimits, thread_count::max_threads},
    platform::{
        self, Tricks,
        safe_file::{led_astray, led_to},
    },
    postgres::page_stage::{PageCheck, PageChecks},
    repo::writer::{RepositoryWriter, must_be_possible},
    sink::{
        Destination,
        local_file::{OneFile, parent_must_be_there},
        stdout::{Null, Stdout},
    },
    stage::{
        Chain, Stage,
        codec::{Codec, Compress},
        digest::DigestStage,
        thin::Thin,
    },
};
use std::{
    ffi::OsStr,
    num::NonZeroUsize,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::Arc,
};

/// A stage, described. Building it needs nothing but this value.
#[derive(Debug, Clone)]
pub enum StageSpec {
    /// Hash what passes.
    Digest {
        /// How.
        algorithm: Algorithm,
        /// Bytes of a block.
        block_bytes: u64,
        /// Are large files cut in chunks by their content?
        chunks: bool,
        /// Are CRC-32Cs of the blocks wanted?
        crc32c: bool,
    },
    /// Take out what earlier backups have.
    Thin {
        /// Bytes of a block.
        block_bytes: u64,
    },
    /// Look at the checksums of PostgreSQL's pages.
    Pages(Arc<PageCheck>),
    /// Compress.
    Compress {
        /// How.
        codec: Codec,
    },
}

impl StageSpec {
    /// Build it, here, on whichever side "here" is.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if a codec has no such level.
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
        })
    }
}

/// All of `stages`, fused into one, for one worker.
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

/// The same stages, compressing as fast as the codec does at any level that makes smaller.
pub fn fast(stages: &[StageSpec]) -> Vec<StageSpec> {
    let fast = |stage: &StageSpec| match *stage {
        StageSpec::Compress { codec } => StageSpec::Compress {
            codec: codec.at_level(codec.level().min(1)),
        },
        ref other => other.clone(),
    };
    stages.iter().map(fast).collect()
}

/// A destination, described.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SinkSpec {
    /// A directory that is a repository or becomes one.
    Repository(PathBuf),
    /// One file.
    File(PathBuf),
    /// Standard output.
    Stdout,
    /// Nowhere.
    Null,
}

/// Endings of file names that are archives, and the codec each asks for.
const ENDINGS: [(&str, Codec); 6] = [
    (".tar.zst", Codec::Zstd(1)),
    (".tzst", Codec::Zstd(1)),
    (".tar.lz4", Codec::Lz4),
    (".tar.gz", Codec::Gzip(6)),
    (".tgz", Codec::Gzip(6)),
    (".tar", Codec::None),
];

/// Endings of names that somebody expects to become one file, which they would not.
const FOREIGN: [&str; 15] = [
    ".tar.zst", ".tzst", ".tar.lz4", ".tgz", ".tar", ".tar.xz", ".txz", ".tar.bz2", ".tbz2",
    ".zst", ".lz4", ".gz", ".xz", ".bz2", ".zip",
];

const ENDINGS_HINT: &str = "use .tar.zst, .tar.lz4, .tar.gz or .tar; for a repository, make a directory of that name first";

impl SinkSpec {
    /// What `--to` says, and the codec: `compress`, or what its ending asks for.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] for the name of a file of another kind than would be written, [`ErrorKind::NotFound`] for a link to nothing.
    pub fn parse(to: impl AsRef<OsStr>, compress: Option<Codec>) -> Result<(Self, Option<Codec>)> {
        let to = Path::new(to.as_ref());
        let bytes = to.as_os_str().as_bytes();
        if let Some(lost) = led_astray(to) {
            let what =
                format!("cannot write to {to:?}: it is a link to {lost:?}, which is not there");
            return Err(Error::new(ErrorKind::NotFound, what));
        }
        let ending = ENDINGS
            .iter()
            .find(|(ending, _)| bytes.ends_with(ending.as_bytes()));
        Ok(match (bytes, ending) {
            (b"-", _) => (Self::Stdout, compress),
            (b"null:", _) => (Self::Null, compress),
            _ if to.is_dir() => (Self::Repository(to.into()), compress),
            _ if is_no_place(to) => {
                let what = format!("cannot write to {to:?}: it is neither a directory nor a file");
                return Err(Error::new(ErrorKind::Usage, what)
                    .hint("standard output is \"-\", and nowhere is \"null:\""));
            }
            _ if is_of_elsewhere(bytes) => {
                let what =
                    format!("cannot write to {to:?}: it looks like a place on another machine");
                return Err(Error::new(ErrorKind::Usage, what).hint(format!(
                    "mount it, or send `--to -` there; a directory of this name is {:?}, and nowhere is \"null:\"",
                    Path::new(".").join(to)
                )));
            }
            (_, Some((ending, asked))) => {
                let codec = compress.unwrap_or(*asked);
                if codec.name() != asked.name() {
                    let what = format!(
                        "cannot write {} into a file whose name ends in {ending:?}",
                        codec.name()
                    );
                    return Err(Error::new(ErrorKind::Usage, what).hint(ENDINGS_HINT));
                }
                (
                    Self::File(led_to(to).unwrap_or_else(|| to.into())),
                    Some(codec),
                )
            }
            _ if FOREIGN
                .iter()
                .any(|ending| bytes.to_ascii_lowercase().ends_with(ending.as_bytes())) =>
            {
                let what = format!("cannot tell what {to:?} is to be: archives have other endings");
                return Err(Error::new(ErrorKind::Usage, what).hint(ENDINGS_HINT));
            }
            _ => (Self::Repository(to.into()), compress),
        })
    }

    /// Is it a repository that is not there yet?
    pub fn is_new_repository(&self) -> bool {
        let is_used = |path: &Path| {
            [layout::REPOSITORY, layout::BACKUPS]
                .iter()
                .any(|name| path.join(name).exists())
        };
        matches!(self, Self::Repository(path) if !is_used(path))
    }

    /// Refuses a destination that cannot be made. With `no_create` it has to be a repository that is there.
    ///
    /// # Errors
    /// As [`must_be_possible`]; [`ErrorKind::Usage`] for `no_create` of anything else than a repository.
    pub fn check(&self, no_create: bool) -> Result<()> {
        match self {
            Self::Repository(path) => must_be_possible(path, no_create),
            _ if no_create => Err(Error::new(
                ErrorKind::Usage,
                format!(
                    "--no-create is for repositories, and not for {}",
                    self.name()
                ),
            )),
            Self::File(path) => parent_must_be_there(path),
            Self::Stdout | Self::Null => Ok(()),
        }
    }

    /// Open it for backup `id`, begun at `time`.
    ///
    /// # Errors
    /// What the destination says.
    pub fn open(
        &self,
        id: &str,
        time: &str,
        codec: Codec,
        tricks: Tricks,
    ) -> Result<Box<dyn Destination>> {
        Ok(match self {
            Self::Repository(path) => Box::new(RepositoryWriter::begin(
                path,
                id,
                time,
                codec.suffix(),
                tricks,
            )?),
            Self::File(path) => Box::new(OneFile::create(path, id, !codec.skips(), tricks)?),
            Self::Stdout => Box::new(Stdout::begin()?),
            Self::Null => Box::new(Null),
        })
    }

    /// What the last line says of it.
    pub fn place(&self) -> String {
        match self {
            Self::Repository(_) | Self::File(_) => format!("is complete in {}", self.name()),
            Self::Stdout => "is complete on standard output".to_owned(),
            Self::Null => "was stored nowhere, as asked".to_owned(),
        }
    }

    /// Its name in messages.
    pub fn name(&self) -> String {
        match self {
            Self::Repository(path) | Self::File(path) => crate::sink::local_file::name(path),
            Self::Stdout => "standard output".to_owned(),
            Self::Null => "nowhere".to_owned(),
        }
    }
}

/// Is it a device, a pipe or a socket?
fn is_no_place(to: &Path) -> bool {
    std::fs::metadata(to).is_ok_and(|found| !found.is_dir() && !found.is_file())
}

/// Does it begin as a URL, as a path of another host, or as what is no file?
fn is_of_elsewhere(to: &[u8]) -> bool {
    to.split(|byte| *byte == b'/')
        .next()
        .is_some_and(|first| first.contains(&b':'))
        || to == b"null"
}

/// How much of the machine a run may use.
#[derive(Debug, Clone, Copy)]
pub struct Tuning {
    /// Threads that compute.
    pub workers: NonZeroUsize,
    /// Threads that read each device; `None`: as many as it pays.
    pub readers: Option<NonZeroUsize>,
    /// Bytes of all buffers together.
    pub memory_bytes: u64,
    /// Plain bytes of a frame: a power of two.
    pub frame_bytes: u32,
    /// Stored bytes of a segment.
    pub segment_bytes: u64,
    /// May tricks be played?
    pub tricks: Tricks,
}

/// How many frames a pipeline may hold, so that all of them fit the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Depths {
    /// Processors that compute.
    pub workers: NonZeroUsize,
    /// Threads that may compute at once: more where all processors may, as each of them may have to wait for its own.
    pub permits: NonZeroUsize,
    /// Frames being read, worked on or waiting for the sink, for each stream.
    pub line: usize,
    /// Threads of a stream, at most.
    pub threads: usize,
    /// How far each stream has small files read ahead.
    pub window: WindowLimits,
}

/// Open files that are not those of frames: what the walk lists, the destination, a session.
const OTHER_FILES: u64 = 48;

impl Tuning {
    /// Divide the memory among `streams`.
    ///
    /// A stream holds the frames in its line and one in the hands of its sink; a worker holds a second buffer, for what it
    /// makes. A quarter is left for codecs, directories and pages. A frame may hold two files open, a large one until all of it
    /// is stored and a small one while it is read, and its directory: there are no more frames than this process may have files open.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if one worker does not fit.
    pub fn depths(&self, streams: usize) -> Result<Depths> {
        let streams = streams.max(1);
        let frames = (self.memory_bytes * 3 / 4 / u64::from(self.frame_bytes)) as usize;
        let line = |workers: usize| (frames.saturating_sub(workers) / streams).saturating_sub(1);
        let fits = |workers: &usize| line(*workers) * streams > *workers && line(*workers) >= 2;
        let most = |most: usize| (1..=most).rev().find(fits).and_then(NonZeroUsize::new);
        let workers = most(self.workers.get()).ok_or_else(|| {
            let least = (streams as u64 * 3 + 1) * u64::from(self.frame_bytes) * 4 / 3;
            Error::new(
                ErrorKind::Usage,
                format!("cannot work in {} bytes of memory", self.memory_bytes),
            )
            .hint(format!(
                "give --memory at least {} MiB, or a smaller --frame-size",
                (least >> 20) + 1
            ))
        })?;
        let permits = match workers < platform::cores() {
            true => workers,
            false => most(2 * workers.get()).unwrap_or(workers),
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
}

impl Tuning {
    /// How much the windows of each of `streams` may hold: of the quarter that is left for others, an eighth for entries of about
    /// 512 bytes; and the page cache holds no more of their files than half of the memory.
    fn window(&self, streams: usize) -> WindowLimits {
        let share = self.memory_bytes / streams as u64 / 2;
        WindowLimits {
            entries: ((share / 32 / 512) as usize).clamp(64, 4096),
            file_bytes: (share / 2).min(MAX_WINDOW_BYTES),
        }
    }
}

/// Bytes of files in a window, at most: some hundred milliseconds of a disk.
const MAX_WINDOW_BYTES: u64 = 32 << 20;

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
            tricks: Tricks::Auto,
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
        let parse = |to| SinkSpec::parse(to, None).unwrap();
        assert_eq!(parse("-").0, SinkSpec::Stdout);
        assert_eq!(parse("null:").0, SinkSpec::Null);
        assert_eq!(
            parse("/x/a.tar.lz4"),
            (SinkSpec::File("/x/a.tar.lz4".into()), Some(Codec::Lz4))
        );
        for directory in ["/x/a", "/x/a.tar.zst/", "/x/a.zstd", "/x/tar"] {
            assert_eq!(
                parse(directory),
                (SinkSpec::Repository(directory.into()), None)
            );
        }
        let zstd = SinkSpec::parse("a.tzst", Some(Codec::Zstd(9))).unwrap();
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
                SinkSpec::parse(name, None).unwrap_err().kind,
                ErrorKind::Usage,
                "{name}"
            );
        }
        for (name, codec) in [
            ("a.tar.zst", Codec::Lz4),
            ("a.tar", Codec::Zstd(1)),
            ("a.tgz", Codec::None),
        ] {
            assert_eq!(
                SinkSpec::parse(name, Some(codec)).unwrap_err().kind,
                ErrorKind::Usage,
                "{name}"
            );
        }
    }
}
