// The "model" of a request's JSON body, for nginx (njs). Empty if there is none.
function model(r) {
  try {
    return String(JSON.parse(r.requestText || '{}').model || '');
  } catch (e) {
    return '';
  }
}
export default {model};
