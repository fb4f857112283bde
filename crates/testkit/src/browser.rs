//! Headless Chromium, driven over its pipe by the DevTools protocol.

use serde_json::{Value, json};
use std::{
    fs,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant},
};
use tempfile::{TempDir, tempdir};

/// Time for anything in a page.
const PATIENCE: Duration = Duration::from_secs(20);

/// A browser with one page.
pub struct Browser {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    session: String,
    last: u64,
    /// What pages complained about: exceptions, and requests or scripts that were blocked.
    pub complaints: Vec<String>,
    pub dir: TempDir,
}

impl Browser {
    pub fn start() -> Self {
        let dir = tempdir().unwrap();
        let line = "exec chromium --headless --no-sandbox --disable-gpu --disable-background-networking --disable-dev-shm-usage \
            --user-data-dir=\"$1/profile\" --remote-debugging-pipe about:blank 3<&0 4>&1 >/dev/null 2>&1";
        let mut command = Command::new("sh");
        command
            .args(["-c", line, "sh"])
            .arg(dir.path())
            .env("HOME", dir.path());
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut browser = Self {
            to: child.stdin.take().unwrap(),
            from: BufReader::new(child.stdout.take().unwrap()),
            child,
            session: String::new(),
            last: 0,
            complaints: Vec::new(),
            dir,
        };
        let target = browser.ask("Target.createTarget", json!({"url": "about:blank"}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let attached = browser.ask("Target.attachToTarget", attach);
        browser.session = attached["sessionId"].as_str().unwrap().to_owned();
        for domain in ["Page", "Runtime", "Log"] {
            browser.ask(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    pub fn ask(&mut self, method: &str, params: Value) -> Value {
        self.last += 1;
        let mut message = json!({"id": self.last, "method": method, "params": params});
        if !self.session.is_empty() {
            message["sessionId"] = self.session.clone().into();
        }
        write!(self.to, "{message}\0").unwrap();
        self.to.flush().unwrap();
        loop {
            let mut bytes = Vec::new();
            self.from.read_until(0, &mut bytes).unwrap();
            bytes.pop();
            let answer: Value = serde_json::from_slice(&bytes).expect("chromium answers");
            if answer["id"] == self.last {
                assert!(answer["error"].is_null(), "{method}: {answer}");
                return answer["result"].clone();
            }
            let method = answer["method"].as_str().unwrap_or_default();
            if ["Runtime.exceptionThrown", "Log.entryAdded"].contains(&method) {
                self.complaints.push(answer["params"].to_string());
            }
        }
    }

    /// The value of an expression.
    pub fn value(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let result = self.ask("Runtime.evaluate", params);
        assert!(
            result["exceptionDetails"].is_null(),
            "{expression}: {result}"
        );
        result["result"]["value"].clone()
    }

    #[track_caller]
    pub fn wait_for(&mut self, expression: &str) {
        let begin = Instant::now();
        loop {
            // A page that is just being left has no value.
            let params = json!({"expression": expression, "returnByValue": true});
            let result = self.ask("Runtime.evaluate", params);
            if result["result"]["value"] == true {
                return;
            }
            if begin.elapsed() > PATIENCE {
                let text = self.value("location.pathname + '\\n' + document.body.innerText");
                panic!("{expression}: {}", text.as_str().unwrap_or_default());
            }
            thread::sleep(Duration::from_millis(30));
        }
    }

    #[track_caller]
    pub fn open(&mut self, address: &str) {
        self.ask("Page.navigate", json!({"url": address}));
    }

    #[track_caller]
    pub fn has_heading(&mut self, words: &str) {
        let words = json!(words);
        self.wait_for(&format!(
            "document.readyState === 'complete' && !!document.querySelector('h1') && document.querySelector('h1').innerText.includes({words})"
        ));
    }

    pub fn key(&mut self, key: &str, text: &str) {
        let code = match key {
            "Tab" => 9,
            "Enter" => 13,
            _ => 0,
        };
        let mut down =
            json!({"type": "keyDown", "key": key, "code": key, "windowsVirtualKeyCode": code});
        if !text.is_empty() {
            down["text"] = text.into();
        }
        self.ask("Input.dispatchKeyEvent", down);
        let up = json!({"type": "keyUp", "key": key, "code": key, "windowsVirtualKeyCode": code});
        self.ask("Input.dispatchKeyEvent", up);
    }

    /// Presses Tab until the focus is on an element with these words, and then Enter.
    #[track_caller]
    pub fn tab_to(&mut self, words: &str) {
        for _ in 0..200 {
            self.key("Tab", "");
            let focus = self.value("((it) => /^(a|button)$/i.test(it.tagName) ? it.innerText || it.getAttribute('aria-label') : '')(document.activeElement)");
            if focus.as_str().unwrap_or_default().contains(words) {
                // Where the focus is can be seen.
                let outline = self.value("getComputedStyle(document.activeElement).outlineStyle");
                assert_ne!(outline, "none", "{words}");
                self.key("Enter", "\r");
                return;
            }
        }
        panic!("no Tab leads to {words:?}");
    }

    pub fn width(&mut self, width: u32) {
        let metrics =
            json!({"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": false});
        self.ask("Emulation.setDeviceMetricsOverride", metrics);
    }

    pub fn scheme(&mut self, scheme: &str) {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.ask("Emulation.setEmulatedMedia", json!({"features": features}));
    }

    /// Draws a page, light and dark, into `DIR/NAME-SCHEME.png`.
    pub fn draw(&mut self, page: &str, to: &Path, name: &str) {
        for scheme in ["light", "dark"] {
            self.scheme(scheme);
            self.width(900);
            self.open(page);
            let page = json!(page);
            self.wait_for(&format!(
                "document.readyState === 'complete' && location.href === {page}"
            ));
            fs::write(to.join(format!("{name}-{scheme}.png")), self.picture()).unwrap();
        }
    }

    pub fn picture(&mut self) -> Vec<u8> {
        let shot = self.ask("Page.captureScreenshot", json!({"format": "png"}));
        let text = shot["data"].as_str().unwrap();
        from_base64(text)
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn from_base64(text: &str) -> Vec<u8> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let bytes: Vec<_> = text.bytes().filter(|byte| *byte != b'=').collect();
    let quads = bytes.chunks(4).flat_map(|quad| {
        let bits = quad
            .iter()
            .fold(0u32, |bits, byte| bits << 6 | u32::from(digit(*byte)));
        let count = quad.len() * 6 / 8;
        let bits = bits << (32 - 6 * quad.len());
        bits.to_be_bytes()
            .into_iter()
            .take(count)
            .collect::<Vec<_>>()
    });
    quads.collect()
}
