//! Measures the limits of this machine one by one, and the share of them that the pipeline reaches.
//!
//! Every figure is bytes of content a second over all threads. Reading and the pipeline use the
//! program's own code with stages left out, so they show the speed of a real backup.

use clap::ValueEnum;
use fullbore_engine::{
    backup::{Backup, Dedup, Outcome, Subject, paths::Scope},
    plan::{SinkSpec, Tuning},
    sink::local_file::Output,
};
use fullbore_format::{
    digest::{Algorithm, piece},
    error::{Error, ErrorKind, Result},
};
use fullbore_pipeline::stage::codec::Codec;
use fullbore_platform::{dir, metrics::meter::Meter, queue::start_in};
use fullbore_repository::base::WantedBase;
use fullbore_storage::Storages;
use std::{
    collections::BTreeMap,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

/// What to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum BenchSubject {
    /// Reading a file or tree
    Read,
    /// Digests
    Digest,
    /// Compression and decompression
    Compress,
    /// Writing and syncing a file
    Write,
    /// A whole backup, compared with each of its parts
    Pipeline,
}

/// The measurement to run, and its settings.
#[derive(Debug, Clone)]
pub(super) struct Bench {
    /// The part to measure.
    pub(super) what: BenchSubject,
    /// Path to read from or write to.
    pub(super) path: PathBuf,
    /// Codec to measure.
    pub(super) codec: Codec,
    /// Number of threads.
    pub(super) workers: NonZeroUsize,
    /// Bytes to process where the amount is free.
    pub(super) bytes: u64,
}

/// A measured figure: name, bytes a second, and a remark.
#[derive(Debug, Clone)]
pub(super) struct Figure {
    /// Name of the measured part.
    pub(super) name: String,
    /// Bytes of content a second.
    pub(super) rate: f64,
    /// Remark for the reader.
    pub(super) remark: String,
}

const FRAME: usize = 1 << 20;

impl Bench {
    /// Runs the measurement.
    ///
    /// # Errors
    /// Errors of the system for the path.
    pub(super) fn run(&self) -> Result<Vec<Figure>> {
        match self.what {
            BenchSubject::Read => Ok(vec![self.read()?]),
            BenchSubject::Digest => Ok(self.digests()),
            BenchSubject::Compress => self.codecs(),
            BenchSubject::Write => Ok(vec![self.write()?]),
            BenchSubject::Pipeline => self.pipeline(),
        }
    }

    /// Backs up the path to nowhere.
    fn backup(&self, codec: Codec, digest: Algorithm) -> Result<Outcome> {
        let tuning = Tuning {
            workers: self.workers,
            readers: None,
            memory_bytes: 128 << 20,
            frame_bytes: FRAME as u32,
            segment_bytes: 1 << 30,
        };
        let scope = Scope {
            paths: vec![self.path.clone()],
            ..Scope::default()
        };
        let sink = SinkSpec::Null;
        let tags = BTreeMap::new();
        let backup = Backup {
            storages: Storages::default(),
            also: Vec::new(),
            no_create: false,
            subject: Subject::Files(scope),
            to: sink,
            codec,
            digest,
            host: None,
            max_rate: None,
            most_errors: None,
            tags,
            base: WantedBase::default(),
            dedup: Dedup::Source,
            checkpoint_interval: Duration::MAX,
            chunks: false,
            block_bytes: None,
            tuning,
        };
        backup.run(&Arc::new(Meter::default()))
    }

    fn read(&self) -> Result<Figure> {
        let outcome = self.backup(Codec::Tar, Algorithm::None)?;
        if outcome.root.totals.bytes == 0 {
            let message = format!(
                "cannot measure reading from \"{}\": it has no content",
                self.path.display()
            );
            return Err(Error::new(ErrorKind::NotFound, message));
        }
        let remark = format!(
            "{} files, {} computing threads",
            outcome.root.totals.files, self.workers
        );
        Ok(figure(
            "read",
            outcome.root.totals.bytes,
            outcome.verdict.seconds,
            remark,
        ))
    }

    fn digests(&self) -> Vec<Figure> {
        let sample = sample_text();
        let algorithms = [Algorithm::Blake3, Algorithm::Crc32c];
        algorithms
            .map(|algorithm| self.digest(algorithm, &sample))
            .into()
    }

    fn digest(&self, algorithm: Algorithm, sample: &[u8]) -> Figure {
        let digest = |_| drop(piece(algorithm, sample, 0, u64::MAX, FRAME as u64));
        figure(
            &format!("digest {algorithm:?}").to_lowercase(),
            self.rounds() * FRAME as u64,
            self.seconds_of_rounds(digest),
            self.threads(),
        )
    }

    /// Measures compressing and decompressing a sample: from the path if it is a file, otherwise
    /// generated text.
    fn codecs(&self) -> Result<Vec<Figure>> {
        let plain = self.sample()?;
        let mut packed = Vec::new();
        self.codec.compressor()?.compress(&plain, &mut packed)?;
        let bytes = self.rounds() * plain.len() as u64;
        let ratio = format!(
            "ratio {:.2}, {}",
            plain.len() as f64 / packed.len() as f64,
            self.threads()
        );
        let pack = |rounds: u64| {
            let (Ok(mut compressor), mut out) = (self.codec.compressor(), Vec::new()) else {
                return;
            };
            (0..rounds).for_each(|_| drop(compressor.compress(&plain, &mut out)));
        };
        let unpack = |rounds: u64| {
            let mut decompressor = self.codec.decompressor();
            let mut out = Vec::new();
            (0..rounds).for_each(|_| drop(decompressor.decompress(&packed, plain.len(), &mut out)));
        };
        // All threads together do as many rounds as one thread does alone.
        let each = self.rounds() / self.workers.get() as u64;
        Ok(vec![
            figure(
                &format!("compress {}", self.codec),
                bytes,
                self.seconds_on_all_threads(|| pack(each)),
                ratio,
            ),
            figure(
                &format!("decompress {}", self.codec),
                bytes,
                self.seconds_on_all_threads(|| unpack(each)),
                self.threads(),
            ),
        ])
    }

    fn write(&self) -> Result<Figure> {
        let path = self
            .path
            .join(format!(".fullbore-bench-{}", std::process::id()));
        if dir::is_append_only(&self.path) {
            let message = format!(
                "cannot write and remove a test file in {:?}: the directory is append-only",
                self.path
            );
            return Err(Error::new(ErrorKind::Permission, message).hint("choose another directory"));
        }
        let sample = sample_text();
        let mut output = Output::create(&path, 0o600)?;
        let start = Instant::now();
        let written = (0..self.rounds()).try_for_each(|i| output.write(&sample, i * FRAME as u64));
        let synced = written.and_then(|()| output.sync());
        let seconds = start.elapsed().as_secs_f64();
        std::fs::remove_file(&path)
            .map_err(|e| Error::io(format!("could not remove \"{}\"", path.display()), e))?;
        synced?;
        Ok(figure(
            "write",
            self.rounds() * FRAME as u64,
            seconds,
            "one writer, durable at the end".to_owned(),
        ))
    }

    fn pipeline(&self) -> Result<Vec<Figure>> {
        let mut figures = vec![self.read()?];
        figures.extend(self.digests().into_iter().take(1));
        figures.extend(self.codecs()?.into_iter().take(1));
        let outcome = self.backup(self.codec, Algorithm::Blake3)?;
        // Parts that share the same processors add up: the best possible rate is the harmonic sum
        // of their rates.
        let ideal = 1.0 / figures.iter().map(|part| 1.0 / part.rate).sum::<f64>();
        let whole = outcome.root.totals.bytes as f64 / outcome.verdict.seconds.max(1e-9);
        let limit = outcome.verdict.limit.name();
        let remark = format!(
            "{:.0} % of the combined rate of its parts; limit: {limit}",
            whole / ideal * 100.0
        );
        figures.push(Figure {
            name: "pipeline".to_owned(),
            rate: whole,
            remark,
        });
        Ok(figures)
    }

    fn rounds(&self) -> u64 {
        (self.bytes / FRAME as u64).max(self.workers.get() as u64)
    }

    fn threads(&self) -> String {
        format!("{} threads", self.workers)
    }

    fn seconds_of_rounds(&self, work: impl Fn(u64) + Sync) -> f64 {
        let each = self.rounds() / self.workers.get() as u64;
        self.seconds_on_all_threads(|| (0..each).for_each(&work))
    }

    /// Returns the seconds until `work` is done on every thread; this thread does the work of
    /// threads that the system refuses.
    fn seconds_on_all_threads(&self, work: impl Fn() + Sync) -> f64 {
        let start = Instant::now();
        std::thread::scope(|scope| {
            let refused = (0..self.workers.get())
                .filter(|_| start_in(scope, &work).is_err())
                .count();
            (0..refused).for_each(|_| work());
        });
        start.elapsed().as_secs_f64()
    }

    /// Returns a frame of the first file of at least that size, or generated text.
    fn sample(&self) -> Result<Vec<u8>> {
        let found = first_file(&self.path).and_then(|path| std::fs::read(path).ok());
        Ok(found.map_or_else(sample_text, |mut bytes| {
            bytes.truncate(FRAME);
            bytes
        }))
    }
}

fn figure(name: &str, bytes: u64, seconds: f64, remark: String) -> Figure {
    Figure {
        name: name.to_owned(),
        rate: bytes as f64 / seconds.max(1e-9),
        remark,
    }
}

/// Returns the largest file directly at or in a path, if it fills a frame and has no more than 1
/// GiB.
fn first_file(path: &Path) -> Option<PathBuf> {
    let fits = |size: &u64| (FRAME as u64..1 << 30).contains(size);
    if file_bytes(path).filter(fits).is_some() {
        return Some(path.to_owned());
    }
    dir::open_root(path).ok()?;
    let files = std::fs::read_dir(path)
        .ok()?
        .flatten()
        .map(|entry| entry.path());
    files
        .filter_map(|path| Some((file_bytes(&path).filter(fits)?, path)))
        .max()
        .map(|(_, path)| path)
}

/// Returns the length of a regular file, without following a link.
fn file_bytes(path: &Path) -> Option<u64> {
    let meta = path.symlink_metadata().ok();
    Some(meta.filter(std::fs::Metadata::is_file)?.len())
}

/// Returns a frame of rows as in a table, about half of it random.
fn sample_text() -> Vec<u8> {
    let mut out = Vec::with_capacity(FRAME + 128);
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut row = 0u64;
    while out.len() < FRAME {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend(
            format!(
                "{row}\t{state:016x}\tcustomer {}\t2026-11-21 05:45:01\n",
                state % 1000
            )
            .into_bytes(),
        );
        row += 1;
    }
    out.truncate(FRAME);
    out
}
