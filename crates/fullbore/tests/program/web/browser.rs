//! The pages in a real browser: headless Chromium, driven over its pipe by the DevTools protocol.

use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant},
};
use tempfile::{TempDir, tempdir};
use testkit::{
    fixture::Fixture,
    runs::{fullbore, has, noise, or_skip, write},
    web::WebServer,
};

/// Time for anything in a page.
const PATIENCE: Duration = Duration::from_secs(20);

/// A browser with one page.
struct Browser {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    session: String,
    last: u64,
    /// What pages complained about: exceptions, and requests or scripts that were blocked.
    complaints: Vec<String>,
    dir: TempDir,
}

impl Browser {
    fn start() -> Self {
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

    fn ask(&mut self, method: &str, params: Value) -> Value {
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
    fn value(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let result = self.ask("Runtime.evaluate", params);
        assert!(
            result["exceptionDetails"].is_null(),
            "{expression}: {result}"
        );
        result["result"]["value"].clone()
    }

    #[track_caller]
    fn wait_for(&mut self, expression: &str) {
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
    fn open(&mut self, address: &str) {
        self.ask("Page.navigate", json!({"url": address}));
    }

    #[track_caller]
    fn has_heading(&mut self, words: &str) {
        let words = json!(words);
        self.wait_for(&format!(
            "document.readyState === 'complete' && !!document.querySelector('h1') && document.querySelector('h1').innerText.includes({words})"
        ));
    }

    fn key(&mut self, key: &str, text: &str) {
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
    fn tab_to(&mut self, words: &str) {
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

    fn width(&mut self, width: u32) {
        let metrics =
            json!({"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": false});
        self.ask("Emulation.setDeviceMetricsOverride", metrics);
    }

    fn scheme(&mut self, scheme: &str) {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.ask("Emulation.setEmulatedMedia", json!({"features": features}));
    }

    fn picture(&mut self) -> Vec<u8> {
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

/// Returns the texts of a page whose contrast is below 4.5 to 1.
const PALE_TEXTS: &str = r#"(() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgba = (color) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1); return canvas.getImageData(0, 0, 1, 1).data; };
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255).map((c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, index) => sum + c * [0.2126, 0.7152, 0.0722][index], 0);
  const back = (node) => { for (; node; node = node.parentElement) { const color = rgba(getComputedStyle(node).backgroundColor); if (color[3] === 255) return color; } return [255, 255, 255]; };
  const pale = [];
  for (const node of document.querySelectorAll("body *")) {
    const text = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    if (!text || node.closest("svg") || node.className === "skip") continue;
    const [a, b] = [light(rgba(getComputedStyle(node).color)), light(back(node))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) pale.push(node.outerHTML.slice(0, 120));
  }
  return pale;
})()"#;

/// Returns what a screen reader cannot name: fields without labels, pictures without words, pages without a language.
const UNNAMED: &str = r#"(() => {
  const bad = [];
  for (const field of document.querySelectorAll("input:not([type=hidden]), select, progress")) if (!field.labels?.length) bad.push(field.outerHTML);
  for (const image of document.querySelectorAll("img")) if (!image.alt) bad.push(image.outerHTML);
  for (const it of document.querySelectorAll("a, button")) if (!((it.innerText || '').trim() || (it.getAttribute('aria-label') || '').trim())) bad.push(it.outerHTML);
  if (!document.documentElement.lang || !document.title) bad.push("language or title");
  if (document.querySelectorAll("main").length !== 1 || document.querySelectorAll("h1").length !== 1) bad.push("main or h1");
  return bad;
})()"#;

/// Three backups of a tree, with a name that is a script.
fn repository() -> TempDir {
    let dir = tempdir().unwrap();
    let tree = dir.path().join("srv");
    write(
        tree.join("docs/letter.txt"),
        "Dear reader,\n\nthis is the first version.\n",
    );
    write(
        tree.join("docs/<img src=x onerror=window.evil=1>.txt"),
        "<script>window.evil = 1</script>",
    );
    write(tree.join("docs/photo.png"), PNG);
    for number in 0..40 {
        write(
            tree.join(format!("data/part-{number:02}.bin")),
            noise(number, 20_000),
        );
    }
    for text in ["first", "second", "third"] {
        write(
            tree.join("docs/letter.txt"),
            format!("Dear reader,\n\nthis is the {text} version.\n"),
        );
        fullbore(args![
            "backup",
            &tree,
            "--to",
            dir.path().join("r"),
            "--host",
            "files",
            "-q"
        ])
        .ends_with(0);
    }
    dir
}

/// A picture of one dot.
const PNG: &[u8] = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x06\x00\x00\x00\x1f\x15\xc4\x89\x00\x00\x00\rIDATx\x9cc\xf8\xcf\xc0\xf0\x1f\x00\x05\x00\x01\xff\x89\x99=\x1d\x00\x00\x00\x00IEND\xaeB`\x82";

fn address(server: &WebServer) -> String {
    format!(
        "http://{}{}enter#{}",
        server.host, server.base, server.token
    )
}

/// The pages to look at, by their names.
fn all_pages(browser: &mut Browser, base: &str) -> BTreeMap<&'static str, String> {
    let fleet = browser.value("fetch('api/fleet').then((answer) => answer.json())");
    let text = |key: &str| fleet["sources"][0][key].as_str().unwrap().to_owned();
    let (backup, source) = (text("newest_id"), text("s"));
    let listed = browser.value(&format!(
        "fetch('api/source?r=0&s={source}').then((answer) => answer.json())"
    ));
    let before = listed["backups"][1]["id"].as_str().unwrap().to_owned();
    let pages = [
        ("sources", String::new()),
        ("source", format!("source?r=0&s={source}")),
        ("retention", format!("retention?r=0&s={source}&keep-last=2")),
        ("backup", format!("backup?r=0&b={backup}")),
        ("directory", format!("backup?r=0&b={backup}&d=docs")),
        ("file", format!("file?r=0&b={backup}&d=docs/letter.txt")),
        ("photo", format!("file?r=0&b={backup}&d=docs/photo.png")),
        ("search", format!("search?r=0&b={backup}&q=part")),
        (
            "versions",
            format!("versions?r=0&b={backup}&d=docs/letter.txt"),
        ),
        ("differences", format!("diff?r=0&a={before}&b={backup}")),
        ("postgres", "postgres?r=0".to_owned()),
        ("runs", "runs?r=0".to_owned()),
        ("checks", "checks?r=0".to_owned()),
        ("restore", format!("restore?r=0&b={backup}&d=docs")),
        ("error", "backup?r=0&b=none".to_owned()),
    ];
    pages
        .map(|(name, page)| (name, format!("{base}{page}")))
        .into()
}

fn has_chromium() -> bool {
    or_skip(has("chromium"), "there is no chromium")
}

#[test]
fn somebody_with_a_keyboard_alone_finds_a_file_and_downloads_it() {
    if !has_chromium() {
        return;
    }
    let dir = repository();
    let server = WebServer::of(&dir.path().join("r"));
    let mut browser = Browser::start();
    browser.open(&address(&server));
    browser.has_heading("Sources");
    assert_eq!(
        browser.value("location.hash"),
        "",
        "the token is not in the address"
    );
    assert_eq!(
        browser.value("document.cookie"),
        "",
        "no script reads the session"
    );
    browser.tab_to("files:");
    browser.has_heading("files:");
    assert_eq!(
        browser.value("document.querySelectorAll('svg.calendar a').length"),
        1
    );
    browser.tab_to(": 3 backups");
    browser.has_heading("Backup 20");
    browser.tab_to("docs/");
    browser.wait_for("document.body.innerText.includes('letter.txt')");
    browser.tab_to("<img src=x");
    browser.has_heading("<img src=x onerror=window.evil=1>.txt");
    assert!(
        browser
            .value("document.querySelector('pre.content').innerText")
            .as_str()
            .unwrap()
            .contains("<script>window.evil = 1</script>")
    );
    let downloads = browser.dir.path().join("downloads");
    browser.ask(
        "Page.setDownloadBehavior",
        json!({"behavior": "allow", "downloadPath": downloads}),
    );
    browser.tab_to("Download");
    let file = wait_for_file(&downloads);
    assert_eq!(fs::read(file).unwrap(), b"<script>window.evil = 1</script>");
    assert!(browser.value("window.evil").is_null());
    // A search by the key that leads to its field.
    browser.tab_to("Top");
    browser.has_heading("Backup 20");
    browser.key("/", "/");
    for letter in "part-07".chars() {
        browser.key(&letter.to_string(), &letter.to_string());
    }
    browser.key("Enter", "\r");
    browser.has_heading("Names with “part-07”");
    assert_eq!(
        browser.value("document.querySelectorAll('tbody tr').length"),
        1
    );
    assert_eq!(browser.complaints, [""; 0]);
}

fn wait_for_file(dir: &Path) -> PathBuf {
    let begin = Instant::now();
    loop {
        let found = fs::read_dir(dir)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path());
        if let Some(file) = found
            .into_iter()
            .find(|file| file.extension().is_none_or(|ending| ending != "crdownload"))
        {
            return file;
        }
        assert!(begin.elapsed() < PATIENCE, "no download");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn every_page_fits_a_narrow_screen_and_can_be_read_in_both_schemes() {
    if !has_chromium() {
        return;
    }
    let dir = repository();
    let server = WebServer::of(&dir.path().join("r"));
    let mut browser = Browser::start();
    browser.open(&address(&server));
    browser.has_heading("Sources");
    let base = format!("http://{}{}", server.host, server.base);
    for (name, page) in all_pages(&mut browser, &base) {
        browser.width(360);
        browser.open(&page);
        browser.wait_for(&format!(
            "document.readyState === 'complete' && location.href === {}",
            json!(page)
        ));
        let width = browser.value("document.documentElement.scrollWidth");
        assert!(width.as_u64().unwrap() <= 360, "{name}: {width}");
        for scheme in ["light", "dark"] {
            browser.scheme(scheme);
            let is_dark = browser
                .value("getComputedStyle(document.body).backgroundColor !== 'rgb(255, 255, 255)'");
            assert_eq!(is_dark, scheme == "dark", "{name}");
            assert_eq!(browser.value(PALE_TEXTS), json!([]), "{name} {scheme}");
        }
        assert_eq!(browser.value(UNNAMED), json!([]), "{name}");
        if name == "photo" {
            browser.wait_for("document.querySelector('img.shown').naturalWidth === 1");
        }
    }
    assert!(browser.value("window.evil").is_null());
    // The page of an error has the status of an error, which the browser notes.
    browser.complaints.retain(|words| !words.contains("404"));
    assert_eq!(browser.complaints, [""; 0]);
}

/// Some backups of the last weeks, of a tree that grows.
fn weeks() -> TempDir {
    let dir = tempdir().unwrap();
    let now = jiff::Timestamp::now();
    for day in (0..60).rev().filter(|day| day % 9 != 4) {
        let time = now - jiff::SignedDuration::from_hours(24 * day + 2);
        let mut backup = Fixture {
            id: format!("{}-ho{day:04}", time.strftime("%Y%m%dT%H%M%SZ")),
            time: time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            ..Fixture::default()
        };
        backup.dir("", 0o755);
        backup.dir("docs", 0o755);
        backup.file("docs/<b>minutes</b>.txt", "Names are shown as they are.\n");
        backup.file(
            "docs/letter.txt",
            format!("Dear reader,\n\nthis is version {}.\n", 60 - day),
        );
        for number in 0..(70 - day) {
            backup.file(
                &format!("docs/report-{number:02}.pdf"),
                noise(number as u64, 3000),
            );
        }
        backup.write_repository(dir.path());
    }
    dir
}

/// Draws the pictures of the documents: `scripts/web-pictures` says where.
#[test]
fn pictures_of_the_pages_are_drawn() {
    let Some(to) = std::env::var_os("FULLBORE_WEB_PICTURES").map(PathBuf::from) else {
        return;
    };
    let dir = weeks();
    fullbore(args!["verify", dir.path(), "--data", "-q"]).ends_with(0);
    let server = WebServer::of(dir.path());
    let mut browser = Browser::start();
    browser.open(&address(&server));
    browser.has_heading("Sources");
    let base = format!("http://{}{}", server.host, server.base);
    let pages = all_pages(&mut browser, &base);
    let shown = pages
        .iter()
        .filter(|(name, _)| !["error", "photo", "postgres"].contains(name));
    for ((name, page), scheme) in
        shown.flat_map(|shown| ["light", "dark"].map(|scheme| (shown, scheme)))
    {
        browser.scheme(scheme);
        browser.width(900);
        browser.open(page);
        let page = json!(page);
        browser.wait_for(&format!(
            "document.readyState === 'complete' && location.href === {page}"
        ));
        write(to.join(format!("{name}-{scheme}.png")), browser.picture());
    }
}
