// The colours of the page: light and dark, the paper's and a colour-blind-safe palette.

export const THEME = /* css */ `
.page {
  --paper: #fdfcfa;
  --ink: #1c1b1a;
  --soft: #66625c;
  --rule: #dcd8d1;
  --faint: #f3f0eb;
  --focus: #111;
  --positive: #d7191c;
  --negative: #2166d1;
  --unattributed: #a8a29a;
  --veil: 0.62;
  --sans: "Inter", "Helvetica Neue", "Segoe UI", system-ui, sans-serif;
  --serif: "Iowan Old Style", "Charter", "Source Serif 4", "Georgia", "DejaVu Serif", serif;
  color-scheme: light;
}
.page[data-palette="safe"] {
  --positive: #d55e00;
  --negative: #0072b2;
}
.page[data-theme="dark"] {
  --paper: #161514;
  --ink: #efece7;
  --soft: #a39d94;
  --rule: #383532;
  --faint: #211f1d;
  --focus: #fff;
  --positive: #ff5468;
  --negative: #5a9bff;
  --unattributed: #7b756d;
  --veil: 0.66;
  color-scheme: dark;
}
.page[data-theme="dark"][data-palette="safe"] {
  --positive: #ff8a2a;
  --negative: #4db3ff;
}
@media (prefers-color-scheme: dark) {
  .page[data-theme="auto"] {
    --paper: #161514;
    --ink: #efece7;
    --soft: #a39d94;
    --rule: #383532;
    --faint: #211f1d;
    --focus: #fff;
    --positive: #ff5468;
    --negative: #5a9bff;
    --unattributed: #7b756d;
    --veil: 0.66;
    color-scheme: dark;
  }
  .page[data-theme="auto"][data-palette="safe"] {
    --positive: #ff8a2a;
    --negative: #4db3ff;
  }
}
`;
