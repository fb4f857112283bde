//! `fullbore web`, asked over its sockets and by a browser.

mod attacks;
mod browser;
mod pages;
mod team;
