//! This machine and this process: cores, names, limits, time and memory used.
//!
//! Every function can be called from any thread. What the system does not tell is zero or empty, never an error:
//! these numbers are for reports and for choosing depths, and no backup fails for want of one.

#![allow(unsafe_code)]

use rustix::{
    io::Errno,
    process::{Resource, Rlimit, getrlimit, setrlimit},
    time::{ClockId, clock_gettime},
};
use std::{
    fs,
    io::{self, Read},
    num::NonZeroUsize,
    os::unix::fs::MetadataExt,
    path::Path,
    thread,
    time::Duration,
};

/// Cores this process may use: at least 1.
///
/// The smallest of the affinity mask and the CPU quota of the control group and its parents (v1 and v2), rounded down.
/// The standard library reads all three since Rust 1.64, so it is asked.
pub fn cores() -> NonZeroUsize {
    thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

/// Raise the limit of open files as far as it goes without privileges; returns the limit that holds now.
///
/// 64 readers with closes collected by 64 need 4,096 descriptors, and the usual soft limit is 1,024.
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

/// Have a write beyond the limit of a file's size fail (`EFBIG`) instead of ending the process.
pub fn survive_file_size_limit() {
    // SAFETY: no handler is installed.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Does this process ignore `signal`, as whoever started it wanted?
pub fn is_ignored(signal: i32) -> bool {
    // SAFETY: a `sigaction` is numbers and pointers, which may all be zero.
    let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: nothing is set; `now` is one that the call may fill.
    let asked = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut now) };
    asked == 0 && now.sa_sigaction == libc::SIG_IGN
}

/// Files that this process may have open at once.
pub fn open_files_limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Does this process or the whole system lack descriptors or memory? Then the error says nothing of the file at hand.
pub fn is_shortage(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM)
    )
}

/// Is it the medium that cannot give what was asked for, or a file system that finds itself damaged there?
pub fn is_media_error(error: &io::Error) -> bool {
    let of = Errno::from_io_error(error);
    matches!(
        of,
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

/// A name for this start of the kernel: two processes are on the same running machine if it is equal.
///
/// Empty where `/proc` is not mounted.
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

/// What no process used of all processors since the system started, in seconds; `None` where `/proc` is not mounted.
pub fn idle_seconds() -> Option<f64> {
    // All of it is a line for each processor and interrupt; the first has the sums.
    let mut stat = [0; 256];
    let len = fs::File::open("/proc/stat")
        .and_then(|mut file| file.read(&mut stat))
        .ok()?;
    let stat = String::from_utf8_lossy(&stat[..len]);
    // user, nice, system, idle, waiting for a device; in hundredths of a second (`USER_HZ`).
    let ticks = stat
        .lines()
        .next()?
        .split_whitespace()
        .skip(4)
        .take(2)
        .map(str::parse::<u64>);
    Some(ticks.sum::<Result<u64, _>>().ok()? as f64 / 100.0)
}

/// The most memory that was ever resident, in bytes; 0 where `/proc` is not mounted.
///
/// Not `getrusage`: its figure is inherited through `exec`, so a small process started by a large one reports the
/// large one's peak (`VmHWM` belongs to the address space).
pub fn peak_rss_bytes() -> u64 {
    fs::read_to_string("/proc/self/status")
        .map(|status| high_water(&status))
        .unwrap_or_default()
}

/// `VmHWM:     1234 kB` in bytes; 0 if it is not there.
fn high_water(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok())
        .map_or(0, |kib| kib * 1024)
}

/// How often the calling thread had to sleep so far: waiting for a device, a lock or a pipe, not for a processor.
pub fn times_asleep() -> u64 {
    // SAFETY: a `rusage` is plain numbers, for which zero is a value, and the call fills it.
    let usage = unsafe {
        let mut usage = std::mem::zeroed::<libc::rusage>();
        libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
        usage
    };
    usage.ru_nvcsw as u64
}

/// The user and group this process acts as.
pub fn user() -> (u32, u32) {
    (
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    )
}

/// Is there a process of this number, whoever it belongs to?
pub fn process_is_alive(pid: i32) -> bool {
    let Some(pid) = rustix::process::Pid::from_raw(pid) else {
        return false;
    };
    !matches!(
        rustix::process::test_kill_process(pid),
        Err(rustix::io::Errno::SRCH)
    )
}

/// A process called `name` whose working directory is `directory`, as far as this one may look.
pub fn process_in(directory: &Path, name: &str) -> Option<u32> {
    let is_there = |pid: &u32| {
        let comm = fs::read_to_string(format!("/proc/{pid}/comm"));
        comm.is_ok_and(|comm| comm.trim() == name) && works_in(*pid, directory)
    };
    let names = fs::read_dir("/proc")
        .ok()?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter_map(|name| name.parse().ok()).find(is_there)
}

/// Is `directory` the working directory of process `pid`, as far as this one may look?
pub fn works_in(pid: u32, directory: &Path) -> bool {
    let place = |path: &Path| {
        fs::metadata(path)
            .map(|found| (found.dev(), found.ino()))
            .ok()
    };
    let found = place(Path::new(&format!("/proc/{pid}/cwd")));
    found.is_some() && found == place(directory)
}

/// Are there no processes but those that this one sees? So it is outside of all containers.
pub fn sees_all_processes() -> bool {
    /// The number of the first namespace, `PROC_PID_INIT_INO` of Linux.
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
        assert_eq!(high_water("Name:\tx\nVmHWM:\t    1234 kB\n"), 1234 * 1024);
        assert_eq!(high_water("nothing"), 0);
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
