// @ts-check
// The static HTML of the page, filled in by mount.

export const SKELETON = `
<article class="page">
  <div class="top">
    <header>
      <h1></h1>
      <p class="summary"></p>
      <p class="carried"></p>
      <p class="differs"></p>
      <p class="warned"></p>
    </header>
    <section class="tally" aria-label="What adds up to the score"><svg aria-hidden="true"></svg><p></p></section>
  </div>

  <figure>
    <div class="stage"></div>
    <p class="switch" role="group" aria-label="Show"><button type="button" data-draw="findings">matches</button><button type="button" data-draw="differences">differences</button><button type="button" data-plain>hide colours</button></p>
    <figcaption>
      <div class="sentence">
        <p class="readout" aria-live="polite" aria-atomic="true"></p>
        <div class="reserve" aria-hidden="true"></div>
      </div>
      <svg class="legend"></svg>
    </figcaption>
  </figure>

  <ol class="findings" aria-label="Matches"></ol>

  <form class="controls" aria-label="What is drawn" autocomplete="off">
    <fieldset class="draw">
      <legend>Draw</legend>
      <label><input type="radio" name="draw" value="findings">matches</label>
      <label><input type="radio" name="draw" value="differences">differences</label>
      <label><input type="radio" name="draw" value="pairs">single pairs</label>
      <label><input type="radio" name="draw" value="shares">shares of regions</label>
    </fieldset>
    <fieldset class="shown">
      <legend>Show</legend>
      <label><input type="checkbox" name="positive" checked><i class="swatch positive"></i>raises</label>
      <label><input type="checkbox" name="negative" checked><i class="swatch negative"></i>lowers</label>
    </fieldset>
    <fieldset class="actions">
      <legend>Look and save</legend>
      <label><input type="checkbox" name="safe">colour-blind safe</label>
      <label>theme <select name="theme"><option value="auto">as the system</option><option value="light">light</option><option value="dark">dark</option></select></label>
      <button type="button" data-save="png">save PNG</button>
      <button type="button" data-save="svg">save SVG</button>
    </fieldset>
    <details class="paper">
      <summary>as in the paper</summary>
      <fieldset class="sliders">
        <legend>Algorithm 1</legend>
        <label title="Pairs and their colours by Algorithm 1 of the paper"><input type="checkbox" name="paper">Algorithm 1</label>
        <label title="Pairs weaker than l are hidden">hide below <var>l</var><input type="range" name="l"><output></output></label>
        <label title="Pairs stronger than h get the full colour">full colour at <var>h</var><input type="range" name="h"><output></output></label>
        <label title="A higher power p leaves only the strongest visible">focus <var>p</var><input type="range" name="p"><output></output></label>
        <label>parameters <select name="style"><option value="">of this pair</option></select></label>
      </fieldset>
    </details>
  </form>

  <details class="more" open>
    <summary>What adds up to the score, and the strongest pairs</summary>
    <div class="columns">
      <section aria-label="What adds up to the score">
        <h2>What adds up to the score</h2>
        <table class="breakdown"><tbody></tbody></table>
        <p class="explained"></p>
      </section>
      <section aria-label="Strongest pairs">
        <h2 class="listed"></h2>
        <ol class="matches"></ol>
      </section>
    </div>
    <footer>
      <p class="lead"></p>
      <p class="help"><kbd>hover</kbd> or <kbd>Tab</kbd> and <kbd>arrows</kbd> to look · <kbd>click</kbd> or <kbd>Enter</kbd> pins · <kbd>drag</kbd> or <kbd>Shift</kbd>+<kbd>arrows</kbd> selects more · <kbd>Esc</kbd> clears · <kbd>+</kbd> <kbd>−</kbd> <kbd>0</kbd> zoom, <kbd>Shift</kbd>+<kbd>drag</kbd> moves</p>
      <dl class="facts"></dl>
    </footer>
  </details>
</article>`;
