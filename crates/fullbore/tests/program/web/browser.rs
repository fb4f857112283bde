//! The pages in a real browser.

use fullbore_format::root::RunStats;
use serde_json::json;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};
use tempfile::{TempDir, tempdir};
use testkit::{
    browser::Browser,
    fixture::Fixture,
    runs::{fullbore, has, noise, or_skip, write},
    web::WebServer,
};

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
    browser.open(&server.address());
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
    let begin = std::time::Instant::now();
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
        assert!(begin.elapsed() < Duration::from_secs(20), "no download");
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
    browser.open(&server.address());
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
    let mut base = None;
    for day in (0..60).rev().filter(|day| day % 9 != 4) {
        let time = now - jiff::SignedDuration::from_mins(60 * (24 * day + 2) + day % 5 * 25);
        let mut backup = Fixture {
            id: format!("{}-ho{day:04}", time.strftime("%Y%m%dT%H%M%SZ")),
            time: time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            run: RunStats {
                seconds: 0.02 + (day * 7 % 11) as f64 / 100.0,
                limit: if day % 3 == 0 { "workers" } else { "source" }.into(),
                ..RunStats::default()
            },
            base: base.take(),
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
        backup.write_repository(&dir.path().join("backup"));
        base = Some(backup.id);
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
    fullbore(args!["verify", dir.path().join("backup"), "--data", "-q"]).ends_with(0);
    let server = WebServer::within(dir.path(), "backup");
    let mut browser = Browser::start();
    browser.open(&server.address());
    browser.has_heading("Sources");
    let base = format!("http://{}{}", server.host, server.base);
    let pages = all_pages(&mut browser, &base);
    let shown = pages
        .iter()
        .filter(|(name, _)| !["error", "photo", "postgres"].contains(name));
    for (name, page) in shown {
        browser.draw(page, &to, name);
    }
}
