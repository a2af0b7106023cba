// OpenID providers that others wrote (npm oidc-provider), on ports of one process.
//
// Each line of the input is JSON: the `id` of a provider to start and its options, or to `close`. Each line
// of the output too: the `id` and the provider's `port`, that it has `closed`, or what it did with a grant.
//
// Clients: `service` and `leaseway` (client_credentials and token exchange, secret in argv[2]),
// `signer` (private_key_jwt) and dynamically registered ones. Every resource gets tokens as JWT.
// Refresh tokens rotate: one that is spent twice ends the grant.
import crypto from 'node:crypto';
import http from 'node:http';
import path from 'node:path';
import readline from 'node:readline';
import { pathToFileURL } from 'node:url';

const [, , folder, secret, ahead] = process.argv;
const now = Date.now;
Date.now = () => now() + Number(ahead) * 1000; // a clock that is wrong
const tell = (line) => console.log(JSON.stringify(line));
const { default: Provider } = await import(
  pathToFileURL(path.join(folder, 'node_modules/oidc-provider/lib/index.js'))
);
const { jwtVerify } = await import(
  pathToFileURL(path.join(folder, 'node_modules/jose/dist/webapi/index.js'))
);
const EXCHANGE = 'urn:ietf:params:oauth:grant-type:token-exchange';
const JWT = ['subject_token', 'subject_token_type', 'actor_token', 'actor_token_type'];

// Exchanges tokens that the key `subjects` has signed: whoever acts joins the chain of actors.
const exchange = (provider, subjects, lifetime) => async (ctx) => {
  const { client, params } = ctx.oidc;
  const verifying = crypto.createPublicKey({ key: subjects, format: 'jwk' });
  const claimsOf = async (token) => (await jwtVerify(token, verifying)).payload;
  let claims;
  let actor;
  try {
    claims = await claimsOf(params.subject_token);
    actor = params.actor_token ? await claimsOf(params.actor_token) : { sub: client.clientId };
  } catch {
    ctx.status = 400;
    ctx.body = { error: 'invalid_grant', error_description: 'the token is not valid' };
    return;
  }
  const token = new provider.AccessToken({
    client,
    accountId: claims.sub,
    scope: params.scope,
    gty: 'exchange',
  });
  const info = { scope: 'tools', audience: params.resource, accessTokenFormat: 'jwt' };
  token.resourceServer = new provider.ResourceServer(params.resource, {
    ...info,
    accessTokenTTL: lifetime,
    jwt: { sign: { alg: 'RS256' } },
  });
  token.actors = { act: { sub: actor.sub, ...(claims.act && { act: claims.act }) } };
  ctx.body = {
    access_token: await token.save(),
    issued_token_type: 'urn:ietf:params:oauth:token-type:access_token',
    token_type: 'Bearer',
    expires_in: token.expiration,
  };
};
const signer = (key) => ({
  client_id: 'signer',
  grant_types: ['client_credentials'],
  redirect_uris: [],
  response_types: [],
  token_endpoint_auth_method: 'private_key_jwt',
  jwks: { keys: [key] },
});
const servers = new Map();

const serve = ({ id, lifetime, address, key, subjects, nonces = false }) => {
  const { privateKey } = crypto.generateKeyPairSync('rsa', { modulusLength: 2048 });
  const server = http.createServer();
  servers.set(id, server);
  server.listen(0, '127.0.0.1', () => {
    const issuer = address ?? `http://127.0.0.1:${server.address().port}`;
    const provider = new Provider(issuer, {
      jwks: { keys: [privateKey.export({ format: 'jwk' })] },
      clients: [
        ...['service', 'leaseway'].map((name) => ({
          client_id: name,
          client_secret: secret,
          grant_types: ['client_credentials', EXCHANGE],
          redirect_uris: [],
          response_types: [],
          token_endpoint_auth_method: 'client_secret_basic',
        })),
        ...(key ? [signer(key)] : []),
      ],
      clientAuthMethods: ['none', 'client_secret_basic', 'private_key_jwt'],
      clientDefaults: { token_endpoint_auth_method: 'none' },
      scopes: ['openid', 'offline_access', 'tools'],
      features: {
        clientCredentials: { enabled: true },
        dPoP: { nonceSecret: crypto.randomBytes(32), requireNonce: () => nonces },
        deviceFlow: { enabled: true },
        registration: { enabled: true },
        revocation: { enabled: true },
        resourceIndicators: {
          enabled: true,
          defaultResource: () => undefined,
          useGrantedResource: () => true,
          getResourceServerInfo: (_, resource) => ({
            scope: 'tools',
            audience: resource,
            accessTokenFormat: 'jwt',
            accessTokenTTL: lifetime,
            jwt: { sign: { alg: 'RS256' } },
          }),
        },
      },
      extraTokenClaims: (_, token) => token.actors,
      rotateRefreshToken: true,
      issueRefreshToken: async (_, client) => client.grantTypeAllowed('refresh_token'),
      findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
    });
    provider.registerGrantType(
      EXCHANGE,
      exchange(provider, subjects, lifetime),
      [...JWT, 'requested_token_type', 'audience', 'resource', 'scope'],
    );
    const report = (event) => (ctx, error) =>
      tell({
        id,
        event,
        grant: ctx.oidc?.params?.grant_type,
        error: error?.error,
        detail: error?.error_detail,
      });
    provider.on('grant.success', report('success'));
    provider.on('grant.error', report('error'));
    provider.on('grant.revoked', report('revoked'));
    provider.on('server_error', (_, error) => console.error(error));
    server.on('request', provider.callback());
    tell({ id, port: server.address().port });
  });
};

readline.createInterface({ input: process.stdin }).on('line', (line) => {
  const { close, ...options } = JSON.parse(line);
  if (!close) return serve(options);
  const server = servers.get(options.id);
  servers.delete(options.id);
  server.close(() => tell({ id: options.id, closed: true }));
  server.closeAllConnections();
});
