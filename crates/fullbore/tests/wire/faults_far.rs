//! Whole commands whose processes are frozen or killed, whose connections are cut, and whose other side says anything.

use super::{
    over_ssh::{files, fullbore, restored, scratch, text, tree},
    sshd::{FULLBORE, program, sshd},
    suite::pattern,
};
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

/// No command of these tests takes so long.
const HANG: Duration = Duration::from_secs(300);

fn script(path: &Path, lines: &str) -> PathBuf {
    fs::write(path, format!("#!/bin/sh\n{lines}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    path.to_owned()
}

/// A number that depends on the seed only.
fn random(seed: u64, below: u64) -> u64 {
    let bytes = pattern(64, seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5bd1_e995);
    bytes.iter().fold(seed, |all, byte| {
        all.wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(u64::from(*byte) + 1)
    }) % below
}

/// Waits for a run to end, which must not take long.
#[track_caller]
fn ended(mut run: Child) -> Output {
    let began = Instant::now();
    while run.try_wait().unwrap().is_none() {
        if began.elapsed() > HANG {
            run.kill().unwrap();
            panic!("it did not end");
        }
        thread::sleep(Duration::from_millis(5));
    }
    run.wait_with_output().unwrap()
}

fn started(command: &mut Command) -> Child {
    // Files, not pipes: whoever waits for the end need not read.
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// An end that is no defect: it is done, or an error was said.
#[track_caller]
fn assert_sound(output: &Output, case: &str) -> bool {
    let said = text(output);
    let code = output.status.code();
    assert!(!said.contains("panicked"), "{case}: {said}");
    match code {
        Some(0) => true,
        Some(1..=4) => {
            assert!(said.contains("error: "), "{case}: {said}");
            false
        }
        _ => panic!("{case}: {code:?} {said}"),
    }
}

/// Sends a signal to these processes, if they are there.
fn signal(name: &str, pids: &[u32]) {
    for pid in pids {
        let _ = Command::new("kill")
            .args([name, &pid.to_string()])
            .stderr(Stdio::null())
            .status();
    }
}

/// When a process was started, in ticks of the clock since the machine was. `None` for one that has ended.
fn start_of(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    fields.next().filter(|state| *state != "Z")?;
    // The state is the third field, and the start is the 22nd.
    fields.nth(18).map(str::to_owned)
}

/// A source, a repository on another host, and a program there that tells its process.
struct FarWorld {
    dir: tempfile::TempDir,
    source: PathBuf,
    repository: PathBuf,
    far_program: PathBuf,
}

impl FarWorld {
    fn new(large_bytes: usize) -> Self {
        let dir = scratch();
        let source = dir.path().join("source");
        tree(&source);
        fs::write(source.join("more"), pattern(large_bytes, 5)).unwrap();
        let pids = dir.path().join("pids");
        let lines = format!(
            "echo $$ $(cut -d ' ' -f 22 /proc/$$/stat) >>{}; exec {FULLBORE} \"$@\"",
            pids.display()
        );
        let far_program = script(&dir.path().join("far"), &lines);
        Self {
            repository: dir.path().join("repository"),
            source,
            far_program,
            dir,
        }
    }

    fn there(&self) -> String {
        format!("ssh://far{}", self.repository.display())
    }

    /// A backup, and no faster than this.
    fn backup(&self, rate: &str) -> Command {
        let source = self.source.to_str().unwrap();
        let there = self.there();
        let mut command = program();
        command
            .args(["backup", source, "--to", &there, "--full"])
            .args(["--max-rate", rate, "--far-program"])
            .arg(&self.far_program)
            .env("FULLBORE_SSH", sshd().command());
        command
    }

    /// The processes of far sides that are there. The number of one that has ended may be that of any other process: its start
    /// tells them apart.
    fn far_pids(&self) -> Vec<u32> {
        let pids = fs::read_to_string(self.dir.path().join("pids")).unwrap_or_default();
        let told = pids.lines().filter_map(|line| line.split_once(' '));
        let told = told.filter_map(|(pid, start)| Some((pid.parse().ok()?, start)));
        let there = told.filter(|(pid, start)| start_of(*pid).as_deref() == Some(*start));
        there.map(|(pid, _)| pid).collect()
    }

    /// Everything that is listed is whole, and one more backup restores.
    fn assert_whole(&self, listed: usize) {
        fullbore(
            0,
            &[
                "backup",
                self.source.to_str().unwrap(),
                "--to",
                &self.there(),
            ],
        );
        let roots = files(&self.repository).into_keys();
        let roots = roots.filter(|name| name.ends_with("root.json")).count();
        assert_eq!(roots, listed + 1);
        let repository = self.repository.to_str().unwrap();
        fullbore(0, &["verify", repository, "--data"]);
        let target = self.dir.path().join("restored");
        fullbore(
            0,
            &["restore", &self.there(), "--to", target.to_str().unwrap()],
        );
        assert!(restored(&target, &self.source) == files(&self.source));
        fullbore(0, &["prune", repository]);
        let intents = fs::read_dir(self.repository.join("intents"));
        assert_eq!(intents.map_or(0, Iterator::count), 0);
    }
}

fn children_of(parent: u32, name: &str) -> Vec<u32> {
    let listed = Command::new("ps")
        .args(["-o", "pid=", "-o", "comm=", "--ppid", &parent.to_string()])
        .output()
        .unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let lines = listed
        .lines()
        .filter_map(|line| line.trim().split_once(' '));
    lines
        .filter(|(_, comm)| comm.trim() == name)
        .filter_map(|(pid, _)| pid.parse().ok())
        .collect()
}

#[test]
fn a_side_that_is_frozen_for_a_while_goes_on_and_nothing_is_lost() {
    let world = FarWorld::new(12_000_000);
    let run = started(&mut world.backup("5M"));
    let near = run.id();
    let pause = |time| thread::sleep(Duration::from_millis(time));
    for who in ["near", "ssh", "far", "all"] {
        pause(400);
        let mut pids = Vec::new();
        if ["near", "all"].contains(&who) {
            pids.push(near);
        }
        if ["ssh", "all"].contains(&who) {
            pids.extend(children_of(near, "ssh"));
        }
        if ["far", "all"].contains(&who) {
            pids.extend(world.far_pids());
        }
        assert!(!pids.is_empty(), "{who}");
        signal("-STOP", &pids);
        pause(700);
        signal("-CONT", &pids);
    }
    let output = ended(run);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    world.assert_whole(1);
}

#[test]
fn a_side_that_is_killed_at_any_time_leaves_nothing_half_done() {
    let world = FarWorld::new(8_000_000);
    let mut done = 0;
    for seed in 0..16 {
        let run = started(&mut world.backup("20M"));
        let near = run.id();
        thread::sleep(Duration::from_millis(random(seed, 700)));
        let is_near = seed % 2 == 0;
        let victims = if is_near {
            vec![near]
        } else {
            world.far_pids()
        };
        signal("-KILL", &victims);
        let output = ended(run);
        if output.status.code().is_some() {
            done += usize::from(assert_sound(&output, &format!("{seed}")));
        }
    }
    // No process stays behind.
    let began = Instant::now();
    while !world.far_pids().is_empty() {
        assert!(began.elapsed() < HANG, "a far side did not end");
        thread::sleep(Duration::from_millis(20));
    }
    let roots = files(&world.repository).into_keys();
    let roots = roots.filter(|name| name.ends_with("root.json")).count();
    // A side that was killed right after the commit could not say so.
    assert!(roots >= done, "{roots} {done}");
    world.assert_whole(roots);
}

/// Passes so many bytes.
const CUT: &str = "my $left = shift; while ($left > 0) { my $want = $left < 65536 ? $left : 65536;
    my $read = sysread(STDIN, my $bytes, $want) or exit; $left -= $read;
    for (my $at = 0; $at < $read;) { $at += syswrite(STDOUT, $bytes, $read - $at, $at) or exit } }";

/// Stands in for ssh: cuts both directions after so many bytes. It holds no end of the connection itself.
const CUTTING_SSH: &str = r#"for command; do :; done
exec 3<&0 4>&1 0</dev/null 1>/dev/null
perl -e "$CUT" "$UP_BYTES" <&3 3<&- 4>&- | sh -c "$command" 3<&- 4>&- | perl -e "$CUT" "$DOWN_BYTES" >&4 3<&- 4>&- &
exec 3<&- 4>&-
wait"#;

#[test]
fn connections_that_are_cut_a_hundred_times_leave_nothing_wrong() {
    let world = FarWorld::new(500_000);
    fs::write(world.source.join("large"), pattern(700_000, 9)).unwrap();
    let ssh = script(&world.dir.path().join("ssh"), CUTTING_SSH);
    let cut = |seed: u64| {
        // Half of them within the messages, half of them within the data.
        let up_bytes = match seed % 2 {
            0 => random(seed, 3_000),
            _ => random(seed, 1_400_000),
        };
        let down_bytes = random(seed + 1000, 6_000);
        let source = world.source.to_str().unwrap();
        let there = format!("ssh://any{}", world.repository.display());
        let mut command = program();
        command
            .args([
                "backup",
                source,
                "--to",
                &there,
                "--full",
                "--far-program",
                FULLBORE,
                "--ssh",
            ])
            .arg(&ssh)
            .env("CUT", CUT)
            .env("UP_BYTES", up_bytes.to_string())
            .env("DOWN_BYTES", down_bytes.to_string());
        let output = ended(started(&mut command));
        assert_sound(&output, &format!("{seed}: {up_bytes} {down_bytes}"))
    };
    let (mut done, mut failed) = (0, 0);
    thread::scope(|scope| {
        let runs: Vec<_> = (0..4)
            .map(|first| scope.spawn(move || (first..100).step_by(4).map(cut).collect::<Vec<_>>()))
            .collect();
        for is_done in runs.into_iter().flat_map(|run| run.join().unwrap()) {
            done += usize::from(is_done);
            failed += usize::from(!is_done);
        }
    });
    println!("{done} backups were done, {failed} failed");
    assert!(failed >= 50, "{failed}");
    let roots = files(&world.repository).into_keys();
    let roots = roots.filter(|name| name.ends_with("root.json")).count();
    assert!(roots >= done, "{roots} {done}");
    world.assert_whole(roots);
}

#[test]
fn a_far_host_that_says_anything_else_is_an_error_at_once() {
    let dir = scratch();
    let source = dir.path().join("source");
    tree(&source);
    let greeting = format!("fullbore wire 1 {}", env!("CARGO_PKG_VERSION"));
    let there = "ssh://far/none/such";
    for (number, line) in [
        "exit 0".to_owned(),
        "echo; echo".to_owned(),
        "echo Welcome to db1".to_owned(),
        "head -c 1000000 /dev/urandom".to_owned(),
        "cat /dev/zero".to_owned(),
        "yes".to_owned(),
        "echo 'fullbore wire 99 7.0.0'; cat".to_owned(),
        format!("echo '{greeting}'"),
        format!("echo '{greeting}'; cat /dev/zero"),
        format!("echo '{greeting}'; head -c 1000000 /dev/urandom"),
        format!("echo '{greeting}'; yes"),
        format!("yes '{greeting}'"),
        format!(r"echo '{greeting}'; printf '\377\377\377\377\377\377\377\377'; cat /dev/urandom"),
        format!(r"echo '{greeting}'; printf '\001\000\000\000\000\000\020\000'; head -c 2000000 /dev/urandom"),
        format!(r"echo '{greeting}'; printf '\003\000\000\000\000\000\000\000\202\000\200'; exit 255"),
        // A greeting that takes its time, byte by byte, and ends.
        "for c in f u l l b o r; do printf $c; sleep 0.1; done".to_owned(),
        // It reads nothing and is gone.
        format!("exec <&-; echo '{greeting}'; exit 0"),
        "kill -9 $$".to_owned(),
    ]
    .into_iter()
    .enumerate()
    {
        let ssh = script(&dir.path().join(format!("ssh{number}")), &line);
        let source = source.to_str().unwrap();
        for arguments in [&["list", there][..], &["backup", source, "--to", there]] {
            let began = Instant::now();
            let mut command = program();
            command.args(arguments).arg("--ssh").arg(&ssh);
            let output = ended(started(&mut command));
            let is_done = assert_sound(&output, &line);
            assert!(!is_done, "{line}");
            assert!(began.elapsed() < HANG / 3, "{line}");
        }
    }
}

/// Stands in for ssh: changes one byte of what the far side says, within the message or the data of a frame.
const LYING_SSH: &str = r#"for command; do :; done
sh -c "$command" | perl -e '
    binmode STDIN; binmode STDOUT; $| = 1;
    sub take { my ($want, $got) = ($_[0], ""); while (length $got < $want) {
        sysread(STDIN, $got, $want - length $got, length $got) or exit 0 } $got }
    sub give { my $at = 0; while ($at < length $_[0]) { $at += syswrite(STDOUT, $_[0], length($_[0]) - $at, $at) or exit 0 } }
    give(take(1)) for 1; my $line = ""; while ((my $byte = take(1)) ne "\n") { $line .= $byte } give("$line\n");
    my $left = $ENV{AT};
    while (1) {
        my $lengths = take(8); my ($header, $data) = unpack("VV", $lengths); my $body = take($header + $data);
        if ($left >= 0 && $left < length $body) { substr($body, $left, 1) ^= chr($ENV{MASK}) }
        $left -= length $body; give($lengths . $body);
    }'"#;

#[test]
fn a_far_host_that_lies_about_a_byte_restores_nothing_wrong() {
    let dir = scratch();
    let source = dir.path().join("source");
    fs::create_dir_all(&source).unwrap();
    for number in 0..6 {
        fs::write(source.join(format!("f{number}")), pattern(2_000, number)).unwrap();
    }
    let repository = dir.path().join("repository");
    let repository = repository.to_str().unwrap();
    fullbore(0, &["backup", source.to_str().unwrap(), "--to", repository]);
    let ssh = script(&dir.path().join("ssh"), LYING_SSH);
    let restore = |seed: u64, index: i64| {
        let target = dir.path().join(format!("to{seed}"));
        let there = format!("ssh://any{repository}");
        let mut command = program();
        command
            .args(["restore", &there, "--to", target.to_str().unwrap()])
            .args(["--far-program", FULLBORE, "--ssh"])
            .arg(&ssh)
            .env("AT", index.to_string())
            .env("MASK", (1 + random(seed, 255)).to_string());
        let output = ended(started(&mut command));
        let is_done = assert_sound(&output, &format!("{index}"));
        if is_done {
            assert!(restored(&target, &source) == files(&source), "{index}");
        }
        is_done
    };
    assert!(restore(0, -1), "the filter changes nothing by itself");
    let (mut done, mut failed) = (0, 0);
    for seed in 1..60 {
        // Most of the messages are within the first 6,000 bytes.
        let cut = random(seed + 500, if seed % 3 == 0 { 14_000 } else { 6_000 });
        match restore(seed, cut as i64) {
            true => done += 1,
            false => failed += 1,
        }
    }
    println!("{failed} restores were refused, {done} were right");
    assert!(failed >= 20, "{failed}");
}

#[test]
fn many_tiny_files_are_pushed_and_pulled_with_all_that_is_said() {
    let wanted = std::env::var("FULLBORE_TINY_FILES").ok();
    let count: u32 = wanted.map_or(20_000, |count| count.parse().unwrap());
    let dir = scratch();
    let source = dir.path().join("source");
    for number in 0..count {
        let sub = source.join(format!("{:03}", number % 500));
        if number < 500 {
            fs::create_dir_all(&sub).unwrap();
        }
        fs::write(sub.join(number.to_string()), number.to_le_bytes()).unwrap();
    }
    let [pushed, pulled] = ["pushed", "pulled"].map(|name| dir.path().join(name));
    let src = source.to_str().unwrap();
    let far_source = format!("ssh://far{src}");
    let there = format!("ssh://far{}", pushed.display());
    thread::scope(|scope| {
        for (origin, target) in [(src, &*there), (&far_source, pulled.to_str().unwrap())] {
            scope.spawn(move || {
                let mut command = sshd().fullbore(&["backup", origin, "--to", target]);
                // Said to a pipe that is read to the end.
                let output = command.env("FULLBORE_DEBUG", "1").output().unwrap();
                assert_eq!(output.status.code(), Some(0), "{}", text(&output));
                let files = format!("{},000 files", count / 1000);
                assert!(text(&output).contains(&files), "{}", text(&output));
            });
        }
    });
    for repository in [&pushed, &pulled] {
        fullbore(0, &["verify", repository.to_str().unwrap(), "--data"]);
    }
}
