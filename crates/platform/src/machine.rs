//! This machine and this process: cores, names, limits, CPU time and memory.
//!
//! Every function can be called from any thread. Unknown values are zero or empty, never an error:
//! these numbers are for reports and for tuning, and a backup must not fail without them.

#![allow(unsafe_code)]

use rustix::{
    io::Errno,
    process::{Resource, Rlimit, getrlimit, setrlimit},
    time::{ClockId, clock_gettime},
};
use std::{
    fs, io,
    num::NonZeroUsize,
    os::unix::fs::{FileExt, MetadataExt},
    path::Path,
    sync::OnceLock,
    thread,
    time::Duration,
};

/// Number of cores that this process may use, at least 1.
///
/// This is the minimum of the affinity mask and the CPU quota of the control group and its parents
/// (v1 and v2), rounded down. The standard library has read all three since Rust 1.64.
pub fn cores() -> NonZeroUsize {
    thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

/// Raises the soft limit of open files to the hard limit, which needs no privileges, and returns
/// the limit now in force.
///
/// 64 readers with closes collected by 64 need 4,096 descriptors, and the usual soft limit is
/// 1,024.
pub fn raise_open_files_limit() -> u64 {
    let old = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: old.maximum,
        maximum: old.maximum,
    };
    let now = if setrlimit(Resource::Nofile, raised).is_ok() {
        old.maximum
    } else {
        old.current
    };
    now.unwrap_or(u64::MAX)
}

/// Makes a write beyond the limit of a file's size fail (`EFBIG`) instead of ending the process.
pub fn survive_file_size_limit() {
    // SAFETY: no handler is installed, the signal is only ignored.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Returns whether this process ignores `signal`, as its parent requested.
pub fn is_ignored(signal: i32) -> bool {
    // SAFETY: a `sigaction` consists of numbers and pointers, for which zero is valid.
    let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: the call sets no action and fills `now`.
    let asked = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut now) };
    asked == 0 && now.sa_sigaction == libc::SIG_IGN
}

/// Number of files that this process may have open at once.
pub fn open_files_limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Returns whether this process or the whole system lacks descriptors or memory. Such an error does
/// not concern the file at hand.
pub fn is_shortage(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM)
    )
}

/// Returns whether the medium failed to deliver the data, or the file system found itself damaged.
pub fn is_media_error(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(
        errno,
        Some(
            Errno::IO
                | Errno::BADMSG
                | Errno::UCLEAN
                | Errno::NODATA
                | Errno::REMOTEIO
                | Errno::ILSEQ
        )
    )
}

/// The name of this host, as `uname -n` prints it.
pub fn host_name() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

/// Returns the ID of this boot of the kernel. Two processes with equal IDs are on the same running
/// machine.
///
/// Empty if `/proc` is not mounted.
pub fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .unwrap_or_default()
        .trim()
        .to_owned()
}

/// CPU time of all threads of this process so far, user and system, in seconds.
pub fn process_cpu_seconds() -> f64 {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime))
        .unwrap_or_default()
        .as_secs_f64()
}

/// CPU time of the calling thread so far, user and system.
pub fn thread_cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// Time since the system started, with the time it was suspended; it never goes back.
pub fn since_boot() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default()
}

/// Time of all processors of the machine since the system started.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct MachineTime {
    /// Seconds of all processors together.
    pub all_seconds: f64,
    /// Seconds of them without work, also while waiting for a device.
    pub idle_seconds: f64,
}

/// A file below `/proc` that stays open: each look is one call.
struct ProcFile {
    path: &'static str,
    open: OnceLock<Option<fs::File>>,
}

impl ProcFile {
    const fn new(path: &'static str) -> Self {
        let open = OnceLock::new();
        Self { path, open }
    }

    /// Returns the first 256 bytes; an empty text if `/proc` is not mounted.
    fn beginning(&self) -> String {
        let open = self.open.get_or_init(|| fs::File::open(self.path).ok());
        let mut text = [0; 256];
        let read = open.as_ref().map(|file| file.read_at(&mut text, 0));
        let len = read.and_then(io::Result::ok).unwrap_or_default();
        String::from_utf8_lossy(&text[..len]).into_owned()
    }
}

/// Returns the time of all processors; `None` if `/proc` is not mounted.
pub fn machine_time() -> Option<MachineTime> {
    // The first line has the totals; the rest has a line for each processor and interrupt.
    static STAT: ProcFile = ProcFile::new("/proc/stat");
    parse_stat(&STAT.beginning())
}

/// Reads `cpu  user nice system idle iowait irq softirq steal …`, in hundredths of a second
/// (`USER_HZ`). The fields behind `steal` are parts of the first two.
fn parse_stat(stat: &str) -> Option<MachineTime> {
    let fields = stat.lines().next()?.split_whitespace().skip(1).take(8);
    let ticks: Vec<u64> = fields
        .map(|field| field.parse().ok())
        .collect::<Option<_>>()?;
    let idle: u64 = ticks.get(3..5)?.iter().sum();
    Some(MachineTime {
        all_seconds: ticks.iter().sum::<u64>() as f64 / 100.0,
        idle_seconds: idle as f64 / 100.0,
    })
}

/// Returns the bytes that this process made devices read, not counting cached ones; 0 if the kernel
/// does not count them.
pub fn device_read_bytes() -> u64 {
    static COUNTS: ProcFile = ProcFile::new("/proc/self/io");
    let counts = COUNTS.beginning();
    let line = counts
        .lines()
        .find_map(|line| line.strip_prefix("read_bytes: "));
    line.and_then(|count| count.parse().ok())
        .unwrap_or_default()
}

/// Returns the peak resident memory in bytes; 0 if `/proc` is not mounted.
///
/// `getrusage` does not serve: its value is inherited through `exec`, so a small process that a
/// large one started would report the large one's peak. `VmHWM` belongs to the address space.
pub fn peak_rss_bytes() -> u64 {
    fs::read_to_string("/proc/self/status")
        .map(|status| parse_peak(&status))
        .unwrap_or_default()
}

/// Returns `VmHWM:     1234 kB` in bytes; 0 if the line is missing.
fn parse_peak(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok())
        .map_or(0, |kib| kib * 1024)
}

/// Returns how often the calling thread has slept: it waited for a device, a lock or a pipe, not
/// for a processor.
pub fn voluntary_sleeps() -> u64 {
    // SAFETY: a `rusage` consists of plain numbers, for which zero is valid, and the call fills it.
    let usage = unsafe {
        let mut usage = std::mem::zeroed::<libc::rusage>();
        libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
        usage
    };
    usage.ru_nvcsw as u64
}

/// Returns the effective user and group of this process.
pub fn user() -> (u32, u32) {
    (user_id(), rustix::process::getegid().as_raw())
}

/// Returns the effective user of this process.
pub fn user_id() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Returns the effective group of this process and all others that it belongs to.
pub fn group_ids() -> Vec<u32> {
    let others = rustix::process::getgroups().unwrap_or_default();
    let own = rustix::process::getegid();
    let all = std::iter::once(own).chain(others);
    all.map(|group| group.as_raw()).collect()
}

/// Returns whether a process with this number exists, of any user.
pub fn process_is_alive(pid: i32) -> bool {
    let Some(pid) = rustix::process::Pid::from_raw(pid) else {
        return false;
    };
    !matches!(
        rustix::process::test_kill_process(pid),
        Err(rustix::io::Errno::SRCH)
    )
}

/// Returns a process named `name` with working directory `directory`. Misses processes that this
/// one may not inspect.
pub fn process_in(directory: &Path, name: &str) -> Option<u32> {
    let names = fs::read_dir("/proc")
        .ok()?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter_map(|name| name.parse().ok()).find(|pid| {
        let comm = fs::read_to_string(format!("/proc/{pid}/comm"));
        comm.is_ok_and(|comm| comm.trim() == name) && works_in(*pid, directory)
    })
}

/// Returns whether `directory` is the working directory of process `pid`; false if this process may
/// not inspect it.
pub fn works_in(pid: u32, directory: &Path) -> bool {
    let found = object_at(Path::new(&format!("/proc/{pid}/cwd")));
    found.is_some() && found == object_at(directory)
}

fn object_at(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path)
        .map(|found| (found.dev(), found.ino()))
        .ok()
}

/// Returns whether this process sees all processes of the machine, so it is outside of all
/// containers.
pub fn sees_all_processes() -> bool {
    /// The number of the first PID namespace, Linux's `PROC_PID_INIT_INO`.
    const FIRST: &str = "pid:[4026531836]";
    fs::read_link("/proc/self/ns/pid").is_ok_and(|link| link.as_os_str() == FIRST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_grows_with_work() {
        let before = process_cpu_seconds();
        let sum = (0..3_000_000u64).fold(0, |a, b| std::hint::black_box(a ^ b));
        std::hint::black_box(sum);
        assert!(process_cpu_seconds() > before);
    }

    #[test]
    fn the_time_of_the_machine_is_that_of_all_its_processors() {
        let time = parse_stat("cpu  100 0 50 700 100 10 20 20 5 0\ncpu0 1").unwrap();
        assert_eq!((time.all_seconds, time.idle_seconds), (10.0, 8.0));
        assert_eq!(parse_stat("intr 1"), None);
    }

    #[test]
    fn the_machine_has_a_name_cores_and_a_boot() {
        assert!(!host_name().is_empty());
        assert!(cores().get() >= 1);
        assert_eq!(boot_id().len(), 36);
        assert_eq!(boot_id(), boot_id());
    }

    #[test]
    fn the_peak_of_memory_is_at_least_what_was_just_used() {
        let block = vec![1u8; 8 << 20];
        std::hint::black_box(&block);
        assert!(peak_rss_bytes() >= 8 << 20);
        assert_eq!(parse_peak("Name:\tx\nVmHWM:\t    1234 kB\n"), 1234 * 1024);
        assert_eq!(parse_peak("nothing"), 0);
    }

    #[test]
    fn the_limit_of_open_files_is_raised_to_the_hard_limit() {
        let now = raise_open_files_limit();
        assert_eq!(now, getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX));
        assert_eq!(
            getrlimit(Resource::Nofile).current,
            getrlimit(Resource::Nofile).maximum
        );
    }
}
