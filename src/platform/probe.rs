//! What kind of device holds a tree, measured and not asked: an SSD behind virtio calls itself rotational.
//!
//! Small direct reads, first one at a time, then sixteen at a time, 40 ms each; nothing is written and nothing stays in
//! the page cache. The rule that makes a depth of it is in [`DeviceClass::of`].

use std::{
    fs::{self, File, OpenOptions},
    io,
    num::NonZeroUsize,
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use rustix::fs::OFlags;

use super::{cores, debug};

/// Bytes of one read.
const BLOCK: usize = 16 << 10;
/// How long each of the two measurements may take.
const WINDOW: Duration = Duration::from_millis(40);
/// Reads at a time in the second one.
const DEEP: usize = 16;
/// A smaller file is soon read whole, and then the cache of the device is measured.
const LEAST_FILE: u64 = 1 << 20;

/// What a device is good for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeviceClass {
    /// What it behaves like.
    pub media: Media,
    /// Median time of one read of 16 KiB when there is no other.
    pub latency: Duration,
    /// How many times more reads a second it does with 16 at a time.
    pub scaling: f64,
    /// How many files to have open and read at a time.
    pub readers: NonZeroUsize,
}

/// What a device behaves like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Media {
    /// One arm: a second reader makes it slower.
    Disk,
    /// Several arms.
    DiskArray,
    /// No arm.
    Flash,
    /// No arm, and close to the processor.
    Nvme,
}

impl DeviceClass {
    /// The class by the rule for depth: 40,000 cold small files on flash took 5.65 s with one reader and 1.56 s with 64,
    /// while one arm is fastest with one reader. `cores` bounds what we could digest.
    pub fn of(latency: Duration, scaling: f64, cores: NonZeroUsize) -> Self {
        let media = match (latency.as_micros(), scaling) {
            (..150, _) => Media::Nvme,
            (150..2000, _) => Media::Flash,
            (_, ..3.0) => Media::Disk,
            _ => Media::DiskArray,
        };
        let readers = match media {
            Media::Disk => 1,
            Media::DiskArray => scaling.round() as usize,
            Media::Flash | Media::Nvme => (cores.get() * 8).clamp(16, 64),
        };
        Self { media, latency, scaling, readers: NonZeroUsize::new(readers).unwrap_or(NonZeroUsize::MIN) }
    }
}

/// Measure the device `dev` on the largest of some `files` that are on it, in at most 100 ms plus one read.
///
/// `None` if none of them is at least 1 MiB, can be opened, and permits direct reads (tmpfs does not).
pub fn probe_device(files: &[PathBuf], dev: u64) -> Option<DeviceClass> {
    let (file, len) = largest(files, dev)?;
    match measure(&file, len) {
        Ok(class) => Some(class),
        Err(error) => {
            debug(|| format!("direct reads are refused ({error}), the device is not measured"));
            None
        }
    }
}

fn largest(files: &[PathBuf], dev: u64) -> Option<(File, u64)> {
    let usable = files.iter().filter_map(|path| Some((path, fs::symlink_metadata(path).ok()?)));
    let usable = usable.filter(|(_, meta)| meta.is_file() && meta.dev() == dev && meta.len() >= LEAST_FILE);
    let (path, meta) = usable.max_by_key(|(_, meta)| meta.blocks())?;
    let flags = (OFlags::DIRECT | OFlags::NOFOLLOW).bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    Some((file, meta.len()))
}

fn measure(file: &File, len: u64) -> io::Result<DeviceClass> {
    let mut alone = read_for_a_while(file, len, 1)?;
    alone.sort_unstable();
    let deep = thread::scope(|scope| {
        let threads: Vec<_> =
            (0..DEEP as u64).map(|seed| scope.spawn(move || read_for_a_while(file, len, seed + 2))).collect();
        threads.into_iter().map(|thread| thread.join().expect("reads do not panic")).collect::<io::Result<Vec<_>>>()
    })?;
    let together: usize = deep.iter().map(Vec::len).sum();
    Ok(DeviceClass::of(alone[alone.len() / 2], together as f64 / alone.len() as f64, cores()))
}

/// The time of each read, at places all over the file; at least one.
fn read_for_a_while(file: &File, len: u64, seed: u64) -> io::Result<Vec<Duration>> {
    let mut block = Box::new(Aligned([0; BLOCK]));
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let (start, mut times) = (Instant::now(), Vec::new());
    while times.is_empty() || start.elapsed() < WINDOW {
        // xorshift64 (Marsaglia, 2003)
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let before = Instant::now();
        file.read_at(&mut block.0, random % (len / BLOCK as u64) * BLOCK as u64)?;
        times.push(before.elapsed());
    }
    Ok(times)
}

/// Direct reads want memory aligned to the block size of the device, at most a page.
#[repr(align(4096))]
struct Aligned([u8; BLOCK]);

/// The I/O scheduler of a device, as `cat /sys/block/sda/queue/scheduler` marks it: `none`, `mq-deadline`, `bfq`.
///
/// A partition is asked for its disk. `None` for what is not a block device (tmpfs, btrfs, NFS).
pub fn scheduler_of(dev: u64) -> Option<String> {
    let base = format!("/sys/dev/block/{}:{}", rustix::fs::major(dev), rustix::fs::minor(dev));
    let read = |queue: &str| fs::read_to_string(Path::new(&base).join(queue).join("scheduler"));
    chosen(&read("queue").or_else(|_| read("../queue")).ok()?)
}

/// `none [mq-deadline] bfq` is `mq-deadline`; a list of one has no brackets.
fn chosen(list: &str) -> Option<String> {
    let marked = list.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(name, _)| name);
    marked.or_else(|| list.split_whitespace().next()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(micros: u64, scaling: f64, cores: usize) -> (Media, usize) {
        let class = DeviceClass::of(Duration::from_micros(micros), scaling, NonZeroUsize::new(cores).unwrap());
        (class.media, class.readers.get())
    }

    #[test]
    fn one_arm_gets_one_reader_and_flash_gets_many() {
        assert_eq!(class(8000, 1.6, 16), (Media::Disk, 1));
        assert_eq!(class(8000, 5.8, 16), (Media::DiskArray, 6));
        assert_eq!(class(400, 4.0, 1), (Media::Flash, 16));
        assert_eq!(class(400, 4.0, 4), (Media::Flash, 32));
        assert_eq!(class(90, 9.0, 64), (Media::Nvme, 64));
    }

    #[test]
    fn the_chosen_scheduler_is_the_one_in_brackets() {
        assert_eq!(chosen("none [mq-deadline] bfq\n").as_deref(), Some("mq-deadline"));
        assert_eq!(chosen("none\n").as_deref(), Some("none"));
        assert_eq!(chosen(""), None);
        assert_eq!(scheduler_of(0), None);
    }

    #[test]
    fn a_device_is_measured_in_a_tenth_of_a_second_or_not_at_all() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = dir.path().join("large");
        fs::write(&path, vec![1; 4 << 20]).unwrap();
        let dev = fs::metadata(&path).unwrap().dev();
        if let Some(class) = probe_device(&[dir.path().to_owned(), path.clone()], dev) {
            assert!(class.latency > Duration::ZERO && class.scaling > 0.0);
        }
        assert_eq!(probe_device(&[path], dev + 1), None);
        assert_eq!(probe_device(&[], dev), None);
    }

    #[test]
    fn memory_is_not_a_device() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = dir.path().join("small");
        fs::write(&path, vec![1; 1000]).unwrap();
        assert_eq!(probe_device(std::slice::from_ref(&path), fs::metadata(&path).unwrap().dev()), None);
    }
}
