// @ts-check
// The colours of the page: light and dark, the paper's and a colour-blind-safe palette.
// Text colours have a contrast of at least 4.5 : 1; a test computes it.

const DARK = `
  --paper: #161514;
  --ink: #efece7;
  --soft: #aaa49b;
  --rule: #3a3733;
  --faint: #24211f;
  --focus: #fff;
  --positive: #f0435a;
  --negative: #3f86f5;
  --onsign: #000;
  --unattributed: #7b756d;
  color-scheme: dark;`;

const DARK_SAFE = `
  --positive: #d06a14;
  --negative: #2a86cc;`;

export const THEME = /* css */ `
.page {
  --paper: #fdfcfa;
  --ink: #1c1b1a;
  --soft: #625e58;
  --rule: #dcd8d1;
  --faint: #f3f0eb;
  --focus: #111;
  --positive: #d7191c;
  --negative: #2166d1;
  --onsign: #fff;
  --unattributed: #a8a29a;
  --sans: "Inter", "Helvetica Neue", "Segoe UI", system-ui, sans-serif;
  --serif: "Iowan Old Style", "Charter", "Source Serif 4", "Georgia", "DejaVu Serif", serif;
  color-scheme: light;
}
.page[data-palette="safe"] {
  --positive: #b94f00;
  --negative: #0069a6;
}
.page[data-theme="dark"] {${DARK}
}
.page[data-theme="dark"][data-palette="safe"] {${DARK_SAFE}
}
@media (prefers-color-scheme: dark) {
  .page[data-theme="auto"] {${DARK}
  }
  .page[data-theme="auto"][data-palette="safe"] {${DARK_SAFE}
  }
}
`;
