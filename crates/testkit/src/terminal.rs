//! The real program on a terminal of its own, made by `script`.

use crate::runs::state_dir;
use std::{
    io::{Read, Write},
    process::{Child, ChildStdin, Command, Stdio},
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// Longest wait for a text.
const PATIENCE: Duration = Duration::from_secs(30);

/// A command of a shell on a terminal.
pub struct Terminal {
    script: Child,
    keys: Option<ChildStdin>,
    shown: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

impl Terminal {
    /// Runs a command line on a terminal of 80 columns.
    pub fn run(command: &str) -> Self {
        Self::sized(80, command)
    }

    /// Runs a command line on a terminal of so many columns.
    pub fn sized(columns: usize, command: &str) -> Self {
        let line = format!("stty cols {columns} rows 40; {command}");
        let mut script = Command::new("script");
        script.args(["-qec", &line, "/dev/null"]);
        script.env("TERM", "xterm").env_remove("COLUMNS");
        script.env("FULLBORE_STATE_DIR", state_dir());
        let script = script.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut script = script.spawn().unwrap();
        let shown: Arc<Mutex<String>> = Arc::default();
        let mut out = script.stdout.take().unwrap();
        let kept = shown.clone();
        let reader = thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = out.read(&mut bytes) {
                let text = String::from_utf8_lossy(&bytes[..count]).into_owned();
                kept.lock().unwrap().push_str(&text);
            }
        });
        Self {
            keys: script.stdin.take(),
            script,
            shown,
            reader: Some(reader),
        }
    }

    /// Types keys, such as `\x03` for Ctrl-C.
    pub fn types(&mut self, keys: &str) {
        let to = self.keys.as_mut().unwrap();
        to.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until the terminal shows a text, and forgets everything up to its end.
    pub fn shows(&self, text: &str) {
        let start = Instant::now();
        loop {
            let mut shown = self.shown.lock().unwrap();
            if let Some(place) = shown.find(text) {
                shown.drain(..place + text.len());
                return;
            }
            assert!(start.elapsed() < PATIENCE, "{text:?} not in {shown:?}");
            drop(shown);
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Closes the terminal, as a window or a connection is closed.
    pub fn close(mut self) {
        self.script.kill().unwrap();
        self.script.wait().unwrap();
    }

    /// Waits for the end of the command. Returns its exit code and all that was shown since the last [`Terminal::shows`].
    pub fn ends(mut self) -> (i32, String) {
        let code = self.script.wait().unwrap().code().unwrap();
        self.reader.take().unwrap().join().unwrap();
        let shown = self.shown.lock().unwrap().replace("\r\n", "\n");
        (code, shown)
    }
}
